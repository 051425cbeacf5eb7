//! Virtual disk: a root file system with the package, the machine's script and its units.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result};

use super::Machine;
use crate::run;

/// Units. Each follows a line with its name.
const UNITS: &str = include_str!("units.txt");
const PROGRAM: &str = include_str!("machine.sh");

/// Script run by root, which owns the files. It unpacks them in memory and copies them to the disk without mounting it.
const SCRIPT: &str = r#"
dir=$1 rootfs=$2 overlay=$3
mount --make-rprivate /
mkdir -p "$dir/system"
mount -t tmpfs -o mode=0755 tmpfs "$dir/system"
tar -xf "$rootfs" -C "$dir/system"
cp -r "$overlay/." "$dir/system"
chmod 0755 "$dir/system/opt/machine.sh"
units=$dir/system/etc/systemd/system
mkdir -p "$units/multi-user.target.wants"
for unit in lab client test; do
    ln -s "/etc/systemd/system/machine-$unit.service" "$units/multi-user.target.wants/"
done
for timer in apt-daily apt-daily-upgrade dpkg-db-backup e2scrub_all fstrim; do
    ln -sf /dev/null "$units/$timer.timer"
done
cp "$dir"/system/boot/vmlinuz-* "$dir/vmlinuz"
cp "$dir"/system/boot/initrd.img-* "$dir/initrd.img"
rm -f "$dir/disk.img"
mke2fs -q -t ext4 -d "$dir/system" "$dir/disk.img" 2G
chown --reference="$dir" "$dir/vmlinuz" "$dir/initrd.img" "$dir/disk.img"
"#;

pub(super) fn make(rootfs: &Path, package: &Path, work: &Path) -> Result<Machine> {
    let (dir, overlay) = (work.join("machine"), work.join("machine-files"));
    let (opt, system) = (overlay.join("opt"), overlay.join("etc/systemd/system"));
    for made in [&dir, &opt, &system] {
        fs::create_dir_all(made).with_context(|| format!("make {}", made.display()))?;
    }
    let write = |path: &Path, text: &str| fs::write(path, text).with_context(|| format!("write {}", path.display()));
    write(&opt.join("machine.sh"), PROGRAM)?;
    for (name, text) in units() {
        write(&system.join(name), text)?;
    }
    fs::copy(package, opt.join("ratelimitd.deb")).with_context(|| format!("copy {}", package.display()))?;
    let mut command =
        run::as_root("unshare", &["--mount", "sh", "-ec", SCRIPT, "sh"]).context("neither root nor sudo")?;
    command.arg(&dir).arg(rootfs).arg(&overlay).stdin(Stdio::null());
    run::step("systemd-vm: a virtual disk", &mut command)?;
    Ok(Machine::below(&dir))
}

fn units() -> impl Iterator<Item = (&'static str, &'static str)> {
    UNITS.split("\n\n").filter_map(|unit| unit.split_once('\n'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_unit_has_a_name_and_starts_something() {
        let units: Vec<_> = units().collect();
        assert_eq!(units.len(), 3);
        assert!(
            units
                .iter()
                .all(|(name, text)| name.ends_with(".service") && text.contains("\nExecStart=/opt/machine.sh "))
        );
    }
}
