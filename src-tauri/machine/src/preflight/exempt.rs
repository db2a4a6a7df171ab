//! The system's own programs, by the file name of their executable: nobody can quit them, so they are not judged.

use crate::readings::Process;

/// macOS: the kernel, what starts and draws everything, sound, logs, and Spotlight's index.
#[cfg(any(target_os = "macos", test))]
const MACOS: &[&str] = &[
    "ControlCenter",
    "Dock",
    "Finder",
    "NotificationCenter",
    "SystemUIServer",
    "WindowManager",
    "WindowServer",
    "airportd",
    "bluetoothd",
    "cfprefsd",
    "configd",
    "coreaudiod",
    "corespotlightd",
    "diskarbitrationd",
    "distnoted",
    "fseventsd",
    "hidd",
    "kernel_task",
    "launchd",
    "logd",
    "loginwindow",
    "mds",
    "mds_stores",
    "mdworker",
    "mdworker_shared",
    "notifyd",
    "opendirectoryd",
    "powerd",
    "runningboardd",
    "securityd",
    "syslogd",
    "syspolicyd",
    "tccd",
    "thermalmonitord",
    "trustd",
];

/// Linux: the first process, its helpers, message buses, display and sound servers. Kernel threads say so themselves.
#[cfg(any(target_os = "linux", test))]
const LINUX: &[&str] = &[
    "NetworkManager",
    "Xorg",
    "Xwayland",
    "dbus-broker",
    "dbus-daemon",
    "gnome-shell",
    "init",
    "kwin_wayland",
    "kwin_x11",
    "pipewire",
    "pipewire-pulse",
    "plasmashell",
    "polkitd",
    "rsyslogd",
    "systemd",
    "systemd-journald",
    "systemd-logind",
    "systemd-oomd",
    "systemd-resolved",
    "systemd-udevd",
    "udisksd",
    "wireplumber",
];

#[cfg(target_os = "linux")]
const SYSTEM: &[&str] = LINUX;
#[cfg(target_os = "macos")]
const SYSTEM: &[&str] = MACOS;

/// Whether a process belongs to the system.
pub(super) fn is_system(process: &Process) -> bool {
    process.kernel || SYSTEM.contains(&process.name.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lists_are_in_order_and_hold_no_name_twice() {
        for list in [MACOS, LINUX] {
            assert!(list.windows(2).all(|pair| pair[0] < pair[1]), "{list:?}");
        }
    }

    #[test]
    fn a_name_counts_whole() {
        let named = |name: &str, kernel| Process {
            pid: 1,
            name: name.into(),
            command: name.into(),
            memory: 0,
            cpu_percent: 0.0,
            kernel,
        };
        for name in SYSTEM {
            assert!(is_system(&named(name, false)));
            assert!(
                !is_system(&named(&format!("{name}2"), false)) && !is_system(&named(&format!("/tmp/{name}"), false))
            );
        }
        assert!(is_system(&named("kworker/0:1", true)) && !is_system(&named("kworker/0:1", false)));
    }
}
