//! `ui/src/types/hearth.ts` says what the server sends: made from the Rust types, and checked to be current.

use hearth_core::limits::{Limits, LimitsPreview};
use hearth_core::stats::*;
use hearth_server::events::{MachineMemory, MemorySample};
use hearth_server::logs::LogLine;
use hearth_server::settings::{Origin, Setting};
use hearth_server::{CommandStatus, Connect, ConnectClient, ConnectTest, DesktopStatus, RequestSummary};
use std::path::Path;
use ts_rs::{Config, TS};

const HEADER: &str = "// Made from the Rust types by `cargo xtask types`; not to be edited.\n\n";

#[test]
fn the_dashboards_types_are_current() {
    let config = Config::new().with_large_int("number");
    let mut text = HEADER.to_owned();
    macro_rules! declare {
        ($($name:ty),* $(,)?) => {
            $(text.push_str(&format!("export {}\n\n", <$name as TS>::decl(&config)));)*
        };
    }
    declare!(
        Health,
        Stats,
        ModelStats,
        RowStats,
        Totals,
        MemoryStats,
        LedgerStats,
        GuardStats,
        GuardLevel,
        PressureLevel,
        GuardAction,
        CacheStats,
        RamCacheStats,
        SsdCacheStats,
        SsdState,
        CacheFlush,
        CacheClear,
        Limits,
        LimitsPreview,
        MemorySample,
        MachineMemory,
        RequestSummary,
        LogLine,
        Setting,
        Origin,
        Connect,
        ConnectClient,
        ConnectTest,
        DesktopStatus,
        CommandStatus,
    );
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ui/src/types/hearth.ts");
    if std::env::var_os("HEARTH_WRITE_TYPES").is_some() {
        std::fs::write(&file, &text).unwrap();
    }
    let there = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(there == text, "{} is not current: run `cargo xtask types`", file.display());
}
