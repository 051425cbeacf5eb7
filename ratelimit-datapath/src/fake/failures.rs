//! Failures that a test has the fake report.

use super::FakeKernel;

impl FakeKernel {
    /// Makes every later attachment to this existing interface fail.
    pub fn refuse_attach(&self, interface: &str) {
        self.world().refusing_attach.insert(interface.to_owned());
    }

    /// Makes attachment to this interface work again.
    pub fn permit_attach(&self, interface: &str) {
        self.world().refusing_attach.remove(interface);
    }

    /// Makes every later `apply` fail.
    pub fn refuse_apply(&self) {
        self.world().refusing_apply = true;
    }

    /// Makes `apply` work again.
    pub fn permit_apply(&self) {
        self.world().refusing_apply = false;
    }

    /// Makes every later read of the maps fail.
    pub fn refuse_read(&self) {
        self.world().refusing_read = true;
    }

    /// Makes reads of the maps work again.
    pub fn permit_read(&self) {
        self.world().refusing_read = false;
    }
}
