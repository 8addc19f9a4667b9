//! Packets and pages of the library in holders' programs, sent to the real hub over its socket.
//!
//! An input is a list of steps: a letter for the kind, two bytes of length, and as many bytes.
//! `0` to `3`: a packet on that line; `w`: where a lease's bytes shall be; `p`: bytes on a lease's page;
//! `h`: hang up; `b`: bytes that are booked; `a`: a waiter wants a lease's GPUs.
//!
//! Properties: after any input the hub answers the next program; orders are JSON that reads back; words of a process
//! count for leases of its own user only; texts are cut to 200 characters; memory that is handed out is bounded.

#![no_main]

use libfuzzer_sys::fuzz_target;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, pwrite};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType, connect, recvmsg, send, socket_with,
};
use std::borrow::Cow;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock, mpsc};
use std::time::Duration;
use sublet_core::ids::LeaseId;
use sublet_core::movers::MoverReport;
use sublet_core::units::Span;
use sublet_host::clock::Clock;
use sublet_host::gpu::GpuSpec;
use sublet_host::shims::{GpuCap, ShimPlacement, ShimSettings, ShimTarget};
use sublet_host::{Host, HostReport, HostSettings};
use sublet_shim_wire::{LeasePage, PACKET_MAX, ShimOrder, ShimReport};

/// Host memory for parked bytes.
const RAM: u64 = 64 << 20;
/// Leases of this user; the one after the last is another user's.
const OWN: u64 = 3;
/// Packets of one line that the hub takes before it serves the other lines.
const PACKETS: usize = 16;
/// Beside what is booked, the hub hands out what a program says it has, an eighth more, and a slack of 64 MiB.
const HANDED_OUT_MAX: u64 = RAM + RAM / 8 + (64 << 20);

/// How long the target waits for an order that may not come.
const MOMENT_MS: i64 = 2;
/// Stands in a packet for the number of the last order.
const NO_ORDER: &str = "\"id\":0";

struct ShimHub {
    host: Host,
    socket: PathBuf,
    sights: Mutex<mpsc::Receiver<HostReport>>,
}

fuzz_target!(|data: &[u8]| {
    let hub = hub();
    (1..=OWN + 1).for_each(|lease| hub.wish(lease, ShimPlacement::OnGpus));
    let mut programs: [Option<Program>; 4] = Default::default();
    let mut rest = data;
    while let [kind, low, high, more @ ..] = rest {
        let length = usize::from(*low) | usize::from(*high) << 8;
        let (step, more) = more.split_at(more.len().min(length));
        rest = more;
        apply_step(hub, &mut programs, *kind, step);
    }
    // The hub answers this after all lines that sent something before.
    hub.check_answers();
    for program in programs.iter_mut().flatten() {
        program.hear();
    }
    drop(programs);
    (1..=OWN + 1).for_each(|lease| hub.host.forget_shim_target(LeaseId(lease)));
    hub.check_sights();
});

fn hub() -> &'static ShimHub {
    static HUB: OnceLock<ShimHub> = OnceLock::new();
    HUB.get_or_init(|| {
        let socket = sublet_fuzz::scratch().join("sublet.sock.shim");
        let mut settings = HostSettings::new(GpuSpec::Real);
        // No GPUs are read here.
        settings.worker_exe = PathBuf::from("/bin/false");
        settings.shims =
            Some(ShimSettings { socket: socket.clone(), stock_bytes: 0, parking_space: RAM, leave_available: 0 });
        let (sink, sights) = mpsc::channel();
        let host = Host::start(settings, Clock::new(Span::ZERO), move |sight| drop(sink.send(sight)));
        let hub = ShimHub { host: host.expect("the hub"), socket, sights: Mutex::new(sights) };
        hub.host.start_reporting();
        hub
    })
}

impl ShimHub {
    fn wish(&self, lease: u64, place: ShimPlacement) {
        let own = rustix::process::getuid().as_raw();
        let uid = if lease <= OWN { own } else { own + 1 };
        let cards = vec![GpuCap { uuid: [7; 16], cap: 24 << 30, context: 0 }; 2];
        self.host.set_shim_target(ShimTarget {
            lease: LeaseId(lease),
            uid,
            placement: place,
            moved_by_driver: Vec::new(),
            gpus: cards,
        });
    }

    /// A program that only reads its page gets an answer.
    fn check_answers(&self) {
        let mut program = Program::connect(self);
        let hello = ShimReport::Hello {
            version: 2,
            pid: 1,
            lease: Some("L1".to_owned()),
            parked: false,
            bytes: 0,
            deep: false,
            aside: None,
            looks: true,
        };
        program.say(&serde_json::to_vec(&hello).expect("JSON"));
        let order = program.wait(20_000);
        assert!(matches!(order, Some(ShimOrder::Welcome { page: true, .. })), "the hub does not answer: {order:?}");
    }

    fn check_sights(&self) {
        for sight in self.sights.lock().expect("the one reader").try_iter() {
            let HostReport::ShimReported { lease, said, .. } = sight else { continue };
            assert!((1..=OWN).contains(&lease.0), "another user's lease {lease}: {said:?}");
            if let MoverReport::Refused(why) = said {
                assert!(why.chars().count() <= 200 && !why.chars().any(char::is_control), "{why:?}");
            }
        }
    }
}

fn apply_step(hub: &ShimHub, programs: &mut [Option<Program>; 4], kind: u8, step: &[u8]) {
    let first = step.first().copied().unwrap_or(0);
    let number = step.get(2..).unwrap_or_default().iter().take(8).fold(0_u64, |n, byte| n << 8 | u64::from(*byte));
    let lease = 1 + u64::from(first) % (OWN + 1);
    match kind {
        b'0'..=b'3' => programs[usize::from(kind - b'0')].get_or_insert_with(|| Program::connect(hub)).say(step),
        b'w' => hub.wish(lease, place(step.get(1).copied().unwrap_or(0), number)),
        b'p' => {
            let program = programs[usize::from(first) % 4].as_mut();
            let at = step.get(1..3).map_or(0, |at| usize::from(at[0]) | usize::from(at[1]) << 8);
            program.into_iter().for_each(|program| program.write(at, step.get(3..).unwrap_or_default()));
        }
        b'h' => programs[usize::from(first) % 4] = None,
        b'b' => hub.host.set_booked_bytes(number % (RAM + 1)),
        b'a' => hub.host.prepare_to_park(LeaseId(lease)),
        _ => {}
    }
}

fn place(kind: u8, number: u64) -> ShimPlacement {
    match kind % 4 {
        0 => ShimPlacement::OnGpus,
        1 => ShimPlacement::LeaseOver { why: "the lease is over".to_owned() },
        kind => ShimPlacement::InHostMemory {
            booked: number % (RAM + 1),
            within: Duration::from_secs(1),
            with_context: kind == 2,
        },
    }
}

/// A program with the library in it.
struct Program {
    socket: OwnedFd,
    page: Option<OwnedFd>,
    packets: usize,
    handed_out: u64,
    /// The order that came last.
    order: u64,
}

impl Program {
    fn connect(hub: &ShimHub) -> Program {
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).expect("a socket");
        connect(&socket, &SocketAddrUnix::new(&hub.socket).expect("a path")).expect("the hub listens");
        Program { socket, page: None, packets: 0, handed_out: 0, order: 0 }
    }

    fn say(&mut self, packet: &[u8]) {
        // An empty packet reads as an end.
        if self.packets < PACKETS && !packet.is_empty() {
            self.packets += 1;
            let packet = self.answering(packet);
            // Refused if the hub hung up.
            let _ = send(&self.socket, &packet, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        }
    }

    /// The packet as an answer to the last order if it says `"id":0`: no input could guess the number.
    fn answering<'a>(&mut self, packet: &'a [u8]) -> Cow<'a, [u8]> {
        match std::str::from_utf8(packet) {
            Ok(text) if text.contains(NO_ORDER) => {
                while self.wait(MOMENT_MS).is_some() {}
                Cow::Owned(text.replace(NO_ORDER, &format!("\"id\":{}", self.order)).into_bytes())
            }
            _ => Cow::Borrowed(packet),
        }
    }

    /// The next order; `None` if none comes within `patience_ms`.
    fn wait(&mut self, patience_ms: i64) -> Option<ShimOrder> {
        let time = Timespec { tv_sec: patience_ms / 1000, tv_nsec: patience_ms % 1000 * 1_000_000 };
        loop {
            let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
            match poll(&mut fds, Some(&time)) {
                // The timer of libFuzzer.
                Err(Errno::INTR) => {}
                Ok(0) | Err(_) => return None,
                Ok(_) => return self.next(),
            }
        }
    }

    /// Takes in all orders that have come.
    fn hear(&mut self) {
        while self.next().is_some() {}
    }

    fn next(&mut self) -> Option<ShimOrder> {
        let mut bytes = [0; PACKET_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let found = recvmsg(&self.socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags).ok()?;
        let files = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(files) => Some(files),
            _ => None,
        });
        let file = files.flatten().next();
        if found.bytes == 0 {
            return None;
        }
        let order: ShimOrder = serde_json::from_slice(&bytes[..found.bytes]).expect("an order is JSON");
        let text = serde_json::to_string(&order).expect("an order is JSON");
        assert_eq!(serde_json::from_str::<ShimOrder>(&text).ok().as_ref(), Some(&order), "{text}");
        match &order {
            ShimOrder::Welcome { page, .. } => {
                assert_eq!(*page, file.is_some());
                self.page = file.or(self.page.take());
            }
            ShimOrder::Arena { bytes, .. } => {
                self.handed_out += bytes;
                assert!(self.handed_out <= HANDED_OUT_MAX, "{} bytes were handed out", self.handed_out);
            }
            ShimOrder::Trim { .. } => self.handed_out = 0,
            ShimOrder::Park { id, .. }
            | ShimOrder::Resume { id }
            | ShimOrder::Deepen { id }
            | ShimOrder::Shallow { id } => {
                self.order = *id;
            }
            ShimOrder::Prepare { .. } | ShimOrder::Over { .. } => {}
        }
        Some(order)
    }

    /// Writes to the page of its lease whatever a holder may write there.
    fn write(&mut self, at: usize, bytes: &[u8]) {
        if self.page.is_none() {
            // It comes with the first answer.
            let _ = self.wait(MOMENT_MS);
        }
        if let Some(page) = &self.page {
            let at = at % size_of::<LeasePage>();
            let bytes = &bytes[..bytes.len().min(size_of::<LeasePage>() - at)];
            let _ = pwrite(page, bytes, at as u64);
        }
    }
}
