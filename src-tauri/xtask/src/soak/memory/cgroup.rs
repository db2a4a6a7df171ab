//! A memory cgroup for one process, of the first or second version, below the one that this program is in.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A cgroup; removed when dropped, by when nothing may be left in it.
pub struct Cgroup {
    folder: PathBuf,
    unified: bool,
}

impl Cgroup {
    /// One with a limit in bytes.
    ///
    /// # Errors
    /// Why there can be none here.
    pub fn new(limit: u64) -> Result<Self, String> {
        if !cfg!(target_os = "linux") {
            return Err("only Linux has them".to_owned());
        }
        let (parent, unified) = parent()?;
        let folder = parent.join(format!("hearth-soak-{}", std::process::id()));
        let failed = |what: &str, e: std::io::Error| format!("{what} {}: {e}", folder.display());
        fs::create_dir(&folder).map_err(|e| failed("cannot make", e))?;
        let group = Cgroup { folder: folder.clone(), unified };
        let file = folder.join(if unified { "memory.max" } else { "memory.limit_in_bytes" });
        fs::write(file, limit.to_string()).map_err(|e| failed("cannot limit", e))?;
        Ok(group)
    }

    /// A command that runs `program` in it.
    pub fn command(&self, program: &Path) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", r#"echo $$ > "$1" && shift && exec "$@""#, "sh"]);
        shell.arg(self.folder.join("cgroup.procs")).arg(program);
        shell
    }

    /// How often the kernel killed in it.
    ///
    /// # Errors
    /// When that cannot be read.
    pub fn oom_kills(&self) -> anyhow::Result<u64> {
        let file = self.folder.join(if self.unified { "memory.events" } else { "memory.oom_control" });
        let text = fs::read_to_string(&file)?;
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill ")).and_then(|n| n.trim().parse().ok());
        count.ok_or_else(|| anyhow::anyhow!("{} has no oom_kill", file.display()))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.folder);
    }
}

/// The memory cgroup that this program is in, and whether it is of the second version.
fn parent() -> Result<(PathBuf, bool), String> {
    let own = fs::read_to_string("/proc/self/cgroup").map_err(|e| format!("cannot read /proc/self/cgroup: {e}"))?;
    let mounts = fs::read_to_string("/proc/mounts").map_err(|e| format!("cannot read /proc/mounts: {e}"))?;
    find(&own, &mounts).ok_or_else(|| "no memory controller is mounted".to_owned())
}

/// From `/proc/self/cgroup` and `/proc/mounts`.
fn find(own: &str, mounts: &str) -> Option<(PathBuf, bool)> {
    let mounted = |kind: &str, option: &str| {
        mounts.lines().find_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let (at, fs_type, options) = (fields.next()?, fields.next()?, fields.next()?);
            (fs_type == kind && (option.is_empty() || options.split(',').any(|o| o == option))).then_some(at)
        })
    };
    let path = |wanted: &dyn Fn(&str) -> bool| {
        own.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let (controllers, path) = (fields.next()?, fields.next()?);
            wanted(controllers).then(|| path.trim_start_matches('/').to_owned())
        })
    };
    if let Some(at) = mounted("cgroup", "memory") {
        return Some((Path::new(at).join(path(&|c| c.split(',').any(|c| c == "memory"))?), false));
    }
    let at = mounted("cgroup2", "")?;
    Some((Path::new(at).join(path(&str::is_empty)?), true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_are_found_where_they_are() {
        let first = find(
            "8:pids:/\n4:memory:/a/b\n0::/\n",
            "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0\n\
             cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n",
        );
        assert_eq!(first, Some((PathBuf::from("/sys/fs/cgroup/memory/a/b"), false)));
        let second = find("0::/user.slice/x\n", "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n");
        assert_eq!(second, Some((PathBuf::from("/sys/fs/cgroup/user.slice/x"), true)));
        assert_eq!(find("0::/\n", "tmpfs /tmp tmpfs rw 0 0\n"), None);
    }
}
