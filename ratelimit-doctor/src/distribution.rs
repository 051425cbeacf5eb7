//! The distribution of the host, and the package that brings a kernel with a missing feature. Pure.

/// Version with two numbers, such as Linux 5.18 or Ubuntu 22.04.
pub(crate) type Version = (u8, u8);

/// Distribution as named in /etc/os-release. Unset fields are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Distribution {
    /// Identifier, such as `debian`.
    pub id: String,
    /// Identifiers of related distributions, such as `rhel fedora`.
    pub like: String,
    /// Version, such as `12` or `22.04`.
    pub version: String,
}

/// First release of Ubuntu with all required features in each of its kernels.
const UBUNTU_ENOUGH: Version = (24, 4);

impl Distribution {
    /// Parses the text of /etc/os-release.
    pub fn parse(text: &str) -> Self {
        let of = |key: &str| {
            let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
            value.map(|value| value.trim().trim_matches(['"', '\'']).to_owned()).unwrap_or_default()
        };
        Self { id: of("ID"), like: of("ID_LIKE"), version: of("VERSION_ID") }
    }

    /// Returns an instruction to install a kernel with a feature. `since` is the first mainline version with the feature.
    pub(crate) fn kernel_with(&self, since: Version) -> String {
        let release = self.release();
        let is_like = |of: &str| self.id == of || self.like.split(' ').any(|like| like == of);
        let got = match () {
            () if self.id == "ubuntu" => ubuntu(release, since),
            () if self.id == "debian" => debian(release, since),
            () if self.id == "amzn" => amazon(release, since),
            () if self.id == "fedora" => Some("sudo dnf upgrade kernel".to_owned()),
            () if is_like("rhel") || self.id == "centos" => red_hat(release),
            () if self.id == "opensuse-tumbleweed" => Some("sudo zypper dist-upgrade".to_owned()),
            () if is_like("suse") || self.id == "sles" => suse(since),
            () if is_like("arch") => Some("sudo pacman -Syu linux".to_owned()),
            () if self.id == "alpine" => Some("sudo apk add --upgrade linux-lts".to_owned()),
            () => None,
        };
        let (major, minor) = since;
        match got {
            Some(how) => format!("{how}; then reboot"),
            None => format!(
                "boot a kernel with this feature, CONFIG_BPF_SYSCALL and CONFIG_BPF_JIT: mainline has it since Linux \
                 {major}.{minor}, and the kernel of a distribution may have it earlier"
            ),
        }
    }

    /// Returns the first two numbers of the version; 0 for missing ones.
    fn release(&self) -> Version {
        let mut numbers = self.version.split('.').map(|number| number.parse().unwrap_or(0));
        (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
    }
}

fn debian((release, _): Version, since: Version) -> Option<String> {
    const IMAGE: &str = "linux-image-$(dpkg --print-architecture)";
    Some(match release {
        // Testing has no version.
        0 | 13.. => format!("sudo apt install {IMAGE}"),
        12 if since > (6, 1) => {
            format!(
                "sudo apt install -t bookworm-backports {IMAGE}, which is Linux 6.12, with the backports as a source"
            )
        }
        12 => format!("sudo apt install {IMAGE}, which is Linux 6.1"),
        11 if since <= (6, 1) => {
            "sudo apt install linux-image-6.1-$(dpkg --print-architecture), with bullseye-security as a source"
                .to_owned()
        }
        _ => "upgrade to Debian 12, whose linux-image is Linux 6.1, or to Debian 13 with Linux 6.12".to_owned(),
    })
}

fn ubuntu(release: Version, since: Version) -> Option<String> {
    Some(match release {
        (22, 4) if since <= (6, 8) => {
            "sudo apt install linux-generic-hwe-22.04, the HWE kernel, which is Linux 6.8".to_owned()
        }
        (20, 4) if since <= (5, 15) => {
            "sudo apt install linux-generic-hwe-20.04, the HWE kernel, which is Linux 5.15".to_owned()
        }
        release if release >= UBUNTU_ENOUGH => "sudo apt install linux-generic".to_owned(),
        _ => "upgrade to Ubuntu 24.04, whose linux-generic is Linux 6.8, or to 22.04 with linux-generic-hwe-22.04"
            .to_owned(),
    })
}

fn red_hat((release, _): Version) -> Option<String> {
    Some(match release {
        9 => "sudo dnf upgrade kernel: its version stays 5.14, and each minor release brings BPF features of later kernels \
              (9.6 those of Linux 6.12)"
            .to_owned(),
        10.. => "sudo dnf upgrade kernel".to_owned(),
        _ => "upgrade to release 9, whose kernel 5.14 has BPF features of later kernels, or install kernel-ml of ELRepo"
            .to_owned(),
    })
}

fn amazon((release, _): Version, since: Version) -> Option<String> {
    Some(match release {
        // 2023 does not fit the type.
        0 if since > (6, 1) => "sudo dnf install kernel6.12".to_owned(),
        0 => "sudo dnf upgrade kernel".to_owned(),
        _ => "move to Amazon Linux 2023, whose kernel is Linux 6.1 or later".to_owned(),
    })
}

fn suse(since: Version) -> Option<String> {
    Some(if since > (6, 4) {
        "upgrade to release 16, whose kernel-default is Linux 6.12".to_owned()
    } else {
        "upgrade to 15.6 or later, whose kernel-default is Linux 6.4".to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOP: Version = (5, 17);
    const TCX: Version = (6, 6);

    #[test]
    fn each_distribution_has_a_package_with_a_newer_kernel() {
        let rows = [
            ("debian", "", "11", LOOP, "sudo apt install linux-image-6.1-$(dpkg"),
            ("debian", "", "11", TCX, "upgrade to Debian 12"),
            ("debian", "", "10", LOOP, "upgrade to Debian 12"),
            ("debian", "", "12", LOOP, "which is Linux 6.1;"),
            ("debian", "", "12", TCX, "-t bookworm-backports linux-image"),
            ("debian", "", "13", TCX, "sudo apt install linux-image"),
            ("ubuntu", "debian", "22.04", LOOP, "linux-generic-hwe-22.04"),
            ("ubuntu", "debian", "22.04", TCX, "linux-generic-hwe-22.04"),
            ("ubuntu", "debian", "20.04", (5, 8), "linux-generic-hwe-20.04"),
            ("ubuntu", "debian", "20.04", LOOP, "upgrade to Ubuntu 24.04"),
            ("ubuntu", "debian", "24.04", LOOP, "sudo apt install linux-generic;"),
            ("rhel", "fedora", "9.0", LOOP, "sudo dnf upgrade kernel: its version stays 5.14"),
            ("rocky", "rhel centos fedora", "9.4", LOOP, "sudo dnf upgrade kernel: its version stays 5.14"),
            ("almalinux", "rhel centos fedora", "8.10", LOOP, "upgrade to release 9"),
            ("rhel", "fedora", "10.0", TCX, "sudo dnf upgrade kernel;"),
            ("fedora", "", "40", TCX, "sudo dnf upgrade kernel;"),
            ("amzn", "fedora", "2023", LOOP, "sudo dnf upgrade kernel;"),
            ("amzn", "fedora", "2023", TCX, "sudo dnf install kernel6.12;"),
            ("amzn", "centos rhel fedora", "2", LOOP, "Amazon Linux 2023"),
            ("opensuse-leap", "suse opensuse", "15.5", LOOP, "upgrade to 15.6"),
            ("sles", "suse", "15.6", TCX, "upgrade to release 16"),
            ("arch", "", "", LOOP, "pacman -Syu linux"),
            ("void", "", "", LOOP, "mainline has it since Linux 5.17"),
            ("", "", "", TCX, "mainline has it since Linux 6.6"),
        ];
        for (id, like, version, since, words) in rows {
            let [id, like, version] = [id, like, version].map(str::to_owned);
            let of = Distribution { id, like, version };
            assert!(of.kernel_with(since).contains(words), "{of:?} {since:?}: {}", of.kernel_with(since));
        }
    }

    #[test]
    fn os_release_is_read_with_and_without_quotes() {
        let text =
            "PRETTY_NAME=\"Debian GNU/Linux 11 (bullseye)\"\nVERSION_ID=\"11\"\nID=debian\nVERSION=\"11 (bullseye)\"\n";
        let of = Distribution::parse(text);
        assert_eq!((of.id.as_str(), of.version.as_str(), of.release()), ("debian", "11", (11, 0)));
        let of = Distribution::parse("ID='rocky'\nID_LIKE=\"rhel centos fedora\"\nVERSION_ID=9.4\n");
        assert_eq!((of.id.as_str(), of.like.as_str(), of.release()), ("rocky", "rhel centos fedora", (9, 4)));
        assert_eq!(Distribution::parse("IDENTITY=x\n# ID\n"), Distribution::default());
    }
}
