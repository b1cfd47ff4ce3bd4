//! What is done to the devices beside reading and writing.

use crate::store::Store;

impl Store {
    /// Lets go of the devices, so that others may open them: the volume is closed or was shut down.
    pub fn release(&self) {
        self.io.devices().iter().for_each(|d| d.release());
    }
}
