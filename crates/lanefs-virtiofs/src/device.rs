//! The device as the virtual machine sees it: how many queues it has, its tag, what it can do.

use crate::line::{Line, Memory};
use lanefs_fuse::guest::Guest;
use std::io;
use std::sync::Arc;
use vhost::vhost_user::message::{VhostUserProtocolFeatures, VhostUserVirtioFeatures};
use vhost_user_backend::{VhostUserBackend, VringMutex};
use virtio_bindings::bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::event::{EventConsumer, EventFlag, EventNotifier, new_event_consumer_and_notifier};

/// The most queues for requests. One more is for what is urgent, and all have a bit in a word.
pub const MOST_QUEUES: usize = 63;

/// Bytes of a tag.
const TAG: usize = 36;
/// Bytes of a `struct virtio_fs_config`: the tag and the number of queues for requests.
const CONFIG: usize = TAG + 4;
/// The most descriptors of a queue.
const QUEUE_SIZE: usize = 1024;

/// The name by which a guest mounts the device: 1 to 36 bytes of UTF-8.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tag(String);

/// A tag that is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadTag;

impl std::fmt::Display for BadTag {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a tag has 1 to 36 bytes, and no zero, comma or white space among them")
    }
}

impl std::error::Error for BadTag {}

impl std::str::FromStr for Tag {
    type Err = BadTag;

    fn from_str(text: &str) -> Result<Tag, BadTag> {
        // A comma would end it on the command line of a virtual machine.
        let is_bad = |c: char| c == '\0' || c == ',' || c.is_whitespace();
        match (1..=TAG).contains(&text.len()) && !text.contains(is_bad) {
            true => Ok(Tag(text.to_string())),
            false => Err(BadTag),
        }
    }
}

impl std::fmt::Display for Tag {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// The device: a queue for what is urgent, and others for requests, each with its threads.
pub(crate) struct Device {
    config: [u8; CONFIG],
    /// Whether the configuration is offered: QEMU, which has its own, warns of another.
    has_config: bool,
    lines: Vec<Arc<Line>>,
}

impl Device {
    /// Makes a device with `queues` queues for requests, of which each has at most `threads`
    /// threads.
    pub fn new(
        guest: &Arc<Guest>,
        memory: &Memory,
        tag: Option<&Tag>,
        queues: usize,
        threads: usize,
    ) -> io::Result<Device> {
        debug_assert!((1..=MOST_QUEUES).contains(&queues) && threads > 0);
        let mut config = [0; CONFIG];
        if let Some(Tag(tag)) = tag {
            config[..tag.len()].copy_from_slice(tag.as_bytes());
        }
        config[TAG..].copy_from_slice(&(queues as u32).to_le_bytes());
        let lines = (0..=queues)
            .map(|n| Line::new(guest, memory, n, if n == 0 { 1 } else { threads }).map(Arc::new))
            .collect::<io::Result<Vec<_>>>()?;
        debug_assert_eq!(lines.len(), queues + 1);
        Ok(Device { config, has_config: tag.is_some(), lines })
    }

    /// Has nobody take requests any more.
    pub fn stop(&self) {
        self.lines.iter().for_each(|line| line.stop());
    }

    /// Waits for the threads, which were stopped.
    pub fn end(&self) {
        self.lines.iter().for_each(|line| line.end());
    }
}

impl VhostUserBackend for Device {
    type Bitmap = ();
    type Vring = VringMutex;

    fn num_queues(&self) -> usize {
        self.lines.len()
    }

    fn max_queue_size(&self) -> usize {
        QUEUE_SIZE
    }

    fn features(&self) -> u64 {
        1 << VIRTIO_F_VERSION_1
            | 1 << VIRTIO_RING_F_INDIRECT_DESC
            | 1 << VIRTIO_RING_F_EVENT_IDX
            | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits()
    }

    fn protocol_features(&self) -> VhostUserProtocolFeatures {
        let config = match self.has_config {
            true => VhostUserProtocolFeatures::CONFIG,
            false => VhostUserProtocolFeatures::empty(),
        };
        VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
            | VhostUserProtocolFeatures::RESET_DEVICE
            | config
    }

    /// The queues keep that themselves.
    fn set_event_idx(&self, _enabled: bool) {}

    fn get_config(&self, offset: u32, size: u32) -> Vec<u8> {
        let from = offset as usize;
        let wanted = from.saturating_add(size as usize).min(CONFIG);
        self.config.get(from..wanted).unwrap_or_default().to_vec()
    }

    /// The queues look at the memory anew for each request.
    fn update_memory(&self, _memory: Memory) -> io::Result<()> {
        Ok(())
    }

    fn queues_per_thread(&self) -> Vec<u64> {
        debug_assert!(self.lines.len() <= 64, "a bit for each");
        (0..self.lines.len()).map(|queue| 1 << queue).collect()
    }

    fn exit_event(&self, _thread: usize) -> Option<(EventConsumer, EventNotifier)> {
        new_event_consumer_and_notifier(EventFlag::NONBLOCK | EventFlag::CLOEXEC).ok()
    }

    fn stop_vring(&self, queue: u32) -> io::Result<()> {
        if let Some(line) = self.lines.get(queue as usize) {
            line.wait_until_idle();
        }
        Ok(())
    }

    /// An error would end the thread, and nobody would serve the queue.
    fn handle_event(
        &self,
        _event: u16,
        _events: EventSet,
        vrings: &[VringMutex],
        thread: usize,
    ) -> io::Result<()> {
        debug_assert_eq!(vrings.len(), 1, "a thread for each queue");
        if let (Some(line), [vring]) = (self.lines.get(thread), vrings) {
            line.kicked(vring);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lanefs::Volume;
    use lanefs_fuse::MountConfig;

    #[test]
    fn a_tag_is_what_a_guest_can_name() {
        let tag = |text: &str| text.parse::<Tag>().is_ok();
        assert!(tag("lanefs") && tag(&"x".repeat(36)) && tag("\u{e4}"));
        for bad in ["", &"x".repeat(37), "a b", "a,b", "a\0"] {
            assert!(!tag(bad), "{bad:?}");
        }
    }

    #[test]
    fn the_configuration_is_read_in_parts() {
        let guest = Guest::new(Volume::in_memory(16 << 20).unwrap(), &MountConfig::default());
        let memory = Memory::new(vm_memory::GuestMemoryMmap::new());
        let tag = "home".parse().unwrap();
        let device = Device::new(&guest, &memory, Some(&tag), 3, 2).unwrap();
        assert_eq!(device.num_queues(), 4);
        let whole = device.get_config(0, 40);
        assert_eq!((&whole[..5], &whole[36..]), (&b"home\0"[..], &[3, 0, 0, 0][..]));
        assert_eq!(device.get_config(36, 4), [3, 0, 0, 0]);
        assert_eq!(device.get_config(0, u32::MAX).len(), 40);
        assert!(device.get_config(41, 4).is_empty());
        assert!(device.get_config(u32::MAX, u32::MAX).is_empty());
        device.stop();
        device.end();
    }
}
