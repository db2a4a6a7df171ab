//! Apple's chips: memory bandwidth, the sizes of memory they come with, and how much of the bandwidth decoding reaches;
//! and this machine in the same terms.
//!
//! Bandwidths and memory options are those of Apple's press releases and technical specifications of each Mac, read in
//! November 2026 through coverage of them: for the M2 to M4 families Ars Technica's comparison of October 2024 (base, Pro,
//! Max), for M4 Max and M3 Ultra Macworld on the Mac Studio (March 2025), for M5 Pro and M5 Max the announcement of
//! March 2026, for the M5 Max with 32 cores and M5 Ultra that of the Mac Studio of August 2026, as listed in
//! github.com/rlindsey2/sunkcost.

use crate::probes::{Probes, System};
use hearth_core::fit::{Allowance, Device, Machine};

/// One chip, as far as running models goes. Variants with another bandwidth are chips of their own.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Chip {
    /// What it is called, without Apple's name.
    pub name: &'static str,
    /// GPU cores, where they tell variants of one name apart.
    pub gpu_cores: Option<u32>,
    /// Memory bandwidth in GB (10^9 bytes) per second.
    pub bandwidth: f64,
    /// Memory options in GiB, as Macs are sold with them.
    pub ram: &'static [u64],
}

const fn chip(name: &'static str, bandwidth: f64, ram: &'static [u64]) -> Chip {
    Chip { name, gpu_cores: None, bandwidth, ram }
}

const fn variant(name: &'static str, cores: u32, bandwidth: f64, ram: &'static [u64]) -> Chip {
    Chip { name, gpu_cores: Some(cores), bandwidth, ram }
}

/// Every chip of a Mac from M1 to M5, oldest first.
pub const CHIPS: [Chip; 22] = [
    chip("M1", 68.25, &[8, 16]),
    chip("M1 Pro", 200.0, &[16, 32]),
    chip("M1 Max", 400.0, &[32, 64]),
    chip("M1 Ultra", 800.0, &[64, 128]),
    chip("M2", 100.0, &[8, 16, 24]),
    chip("M2 Pro", 200.0, &[16, 32]),
    chip("M2 Max", 400.0, &[32, 64, 96]),
    chip("M2 Ultra", 800.0, &[64, 128, 192]),
    chip("M3", 100.0, &[8, 16, 24]),
    chip("M3 Pro", 150.0, &[18, 36]),
    variant("M3 Max", 30, 300.0, &[36, 96]),
    variant("M3 Max", 40, 400.0, &[48, 64, 128]),
    chip("M3 Ultra", 819.0, &[96, 256, 512]),
    chip("M4", 120.0, &[16, 24, 32]),
    chip("M4 Pro", 273.0, &[24, 48, 64]),
    variant("M4 Max", 32, 410.0, &[36]),
    variant("M4 Max", 40, 546.0, &[48, 64, 128]),
    chip("M5", 153.0, &[16, 24, 32]),
    chip("M5 Pro", 307.0, &[24, 48, 64]),
    variant("M5 Max", 32, 460.0, &[36]),
    variant("M5 Max", 40, 614.0, &[48, 64, 128]),
    chip("M5 Ultra", 1200.0, &[96, 256, 512]),
];

const GIB: u64 = 1 << 30;

impl Chip {
    /// The share of the bandwidth that decoding reaches: the wider the memory, the less of it. Rounded from what users
    /// of llama.cpp report for a 7B model in 4 bits (its discussion #4167: M1 near 0.8, M1 Max near 0.6, M2 Ultra near
    /// 0.45). A prediction, until this machine is measured.
    pub fn efficiency(&self) -> f64 {
        match self.name.split_once(' ').map(|(_, tier)| tier) {
            Some("Pro") => 0.7,
            Some("Max") => 0.6,
            Some("Ultra") => 0.45,
            _ => 0.75,
        }
    }

    /// A Mac with this chip and so much memory, in bytes.
    fn machine(&self, ram: u64) -> Machine {
        Machine {
            chip: Some(match self.gpu_cores {
                Some(cores) => format!("{} ({cores} GPU cores)", self.name),
                None => self.name.to_owned(),
            }),
            device: Device::Gpu,
            ram,
            available: None,
            working_set: None,
            bandwidth: Some(self.bandwidth * 1e9),
            efficiency: self.efficiency(),
            allowance: Allowance::default(),
        }
    }
}

/// The chip of this name (`Apple M3 Max`, as the system says it) in a Mac with this much memory, in bytes. Variants are
/// told apart by the memory that they are sold with; where that does not help, it is the slower one.
pub fn find(name: &str, ram: u64) -> Option<&'static Chip> {
    let name = name.trim().trim_start_matches("Apple ");
    let named = || CHIPS.iter().filter(|chip| chip.name == name);
    named()
        .find(|chip| chip.ram.iter().any(|gib| gib * GIB == ram))
        .or_else(|| named().min_by(|a, b| a.bandwidth.total_cmp(&b.bandwidth)))
}

/// Every Mac there is, by chip and memory.
pub fn skus() -> Vec<Machine> {
    CHIPS.iter().flat_map(|chip| chip.ram.iter().map(|gib| chip.machine(gib * GIB))).collect()
}

/// This machine.
pub fn here() -> Machine {
    let probes = System::here();
    let memory = crate::memory();
    let (name, ram) = (probes.chip(), probes.ram().unwrap_or(memory.total));
    let device = if cfg!(target_os = "macos") { Device::Gpu } else { Device::Cpu };
    // 0 is the system's own choice.
    let working_set = probes.gpu_wired_limit().filter(|mb| *mb > 0).map(|mb| mb << 20);
    machine(name, ram, device, working_set, Some(memory.available).filter(|&bytes| bytes > 0))
}

fn machine(
    name: Option<String>,
    ram: u64,
    device: Device,
    working_set: Option<u64>,
    available: Option<u64>,
) -> Machine {
    let chip = name.as_deref().and_then(|name| find(name, ram));
    let known = chip.map(|chip| chip.machine(ram));
    Machine {
        chip: name,
        device,
        ram,
        available,
        working_set,
        bandwidth: known.as_ref().and_then(|known| known.bandwidth),
        efficiency: known.map_or(0.5, |known| known.efficiency),
        allowance: Allowance::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variants_are_told_apart_by_their_memory() {
        for (name, gib, bandwidth) in [
            ("Apple M1", 16, 68.25),
            ("Apple M3 Max", 36, 300.0),
            ("Apple M3 Max", 64, 400.0),
            ("Apple M4 Max", 36, 410.0),
            ("Apple M4 Max", 128, 546.0),
            // No such Mac: the slower one.
            ("Apple M4 Max", 72, 410.0),
            ("M5 Ultra", 512, 1200.0),
        ] {
            assert_eq!(find(name, gib * GIB).unwrap().bandwidth, bandwidth, "{name} {gib}");
        }
        assert_eq!(find("Apple M9", 16 * GIB), None);
        assert_eq!(find("Intel(R) Xeon(R) CPU", 16 * GIB), None);
    }

    #[test]
    fn every_mac_of_the_table_is_found_as_itself() {
        let mut names = Vec::new();
        for chip in &CHIPS {
            assert!(chip.ram.is_sorted() && chip.ram.iter().all(|gib| (8..=512).contains(gib)), "{chip:?}");
            assert!((60.0..1300.0).contains(&chip.bandwidth), "{chip:?}");
            for gib in chip.ram {
                assert_eq!(find(chip.name, gib * GIB), Some(chip));
            }
            names.extend(chip.machine(0).chip);
        }
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!((names.len(), skus().len()), (count, CHIPS.iter().map(|chip| chip.ram.len()).sum()));
    }

    #[test]
    fn this_machine_is_one() {
        let here = here();
        assert!(here.ram > 1 << 28 && here.available.is_some_and(|bytes| bytes < here.ram), "{here:?}");
        assert_eq!(here.device == Device::Gpu, cfg!(target_os = "macos"));
        let mac = machine(Some("Apple M2 Ultra".into()), 128 * GIB, Device::Gpu, Some(GIB), None);
        assert_eq!((mac.bandwidth, mac.efficiency, mac.working_set), (Some(800e9), 0.45, Some(GIB)));
        assert_eq!(machine(None, GIB, Device::Cpu, None, None).bandwidth, None);
    }
}
