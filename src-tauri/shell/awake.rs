//! Keeping the machine awake while it answers, loads or downloads, and only then. The display may go dark.

/// Held while something works; at most one reason at a time.
#[derive(Debug, Default)]
pub struct Awake {
    held: Option<system::Assertion>,
}

impl Awake {
    /// Begins or ends it, if that is a change.
    pub fn set(&mut self, working: bool) {
        if working && self.held.is_none() {
            self.held = system::Assertion::begin("Hearth is working on an answer, a model or a download");
        } else if !working {
            self.held = None;
        }
    }
}

#[cfg(target_os = "macos")]
mod system {
    //! A power assertion of IOKit.

    use objc2_core_foundation::CFString;

    /// Ends when dropped.
    #[derive(Debug)]
    pub struct Assertion(u32);

    impl Assertion {
        pub fn begin(why: &str) -> Option<Self> {
            sys::create(&CFString::from_static_str("PreventUserIdleSystemSleep"), &CFString::from_str(why))
                .map(Assertion)
        }
    }

    impl Drop for Assertion {
        fn drop(&mut self) {
            sys::release(self.0);
        }
    }

    mod sys {
        //! The two calls.

        use objc2_core_foundation::CFString;

        #[link(name = "IOKit", kind = "framework")]
        unsafe extern "C" {
            fn IOPMAssertionCreateWithName(kind: &CFString, level: u32, name: &CFString, id: *mut u32) -> i32;
            fn IOPMAssertionRelease(id: u32) -> i32;
        }

        /// kIOPMAssertionLevelOn.
        const ON: u32 = 255;

        pub fn create(kind: &CFString, why: &CFString) -> Option<u32> {
            let mut id = 0;
            // SAFETY: both strings live through the call, and `id` has room for the number.
            let status = unsafe { IOPMAssertionCreateWithName(kind, ON, why, &mut id) };
            (status == 0).then_some(id)
        }

        pub fn release(id: u32) {
            // SAFETY: a plain number, which `create` returned and nobody released before.
            unsafe { IOPMAssertionRelease(id) };
        }
    }
}

#[cfg(not(target_os = "macos"))]
mod system {
    //! A block on the system's idle sleep, as logind grants it: a program that holds it as long as it runs.

    use std::process::{Child, Command, Stdio};

    /// Ends when dropped.
    #[derive(Debug)]
    pub struct Assertion(Child);

    impl Assertion {
        /// `None` where there is no logind: such a machine does not go to sleep by it either.
        pub fn begin(why: &str) -> Option<Self> {
            let mut inhibit = Command::new("systemd-inhibit");
            inhibit.args(["--what=idle", "--mode=block", "--who=Hearth", "--why", why, "cat"]);
            // `cat` ends when its input does, so that the block ends with this process however that ends.
            inhibit.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
            inhibit.spawn().ok().map(Assertion)
        }
    }

    impl Drop for Assertion {
        fn drop(&mut self) {
            drop(self.0.stdin.take());
            // It may not even have come to `cat` yet.
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}
