//! The two processes: what serves the volume, and the virtual machine. Both end with these.

use super::kernel::Kernel;
use crate::programs::child::{self, tail};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// The longest that a guest may take for its stage.
const LIMIT: Duration = Duration::from_secs(1200);
/// The guest's memory.
const MEMORY: &str = "512M";

/// `lanefs virtiofs`.
pub struct Server {
    process: Child,
    socket: PathBuf,
    log: PathBuf,
}

impl Server {
    /// Starts it, and returns when it waits for a virtual machine.
    pub fn start(lanefs: &Path, image: &Path, dir: &Path) -> Result<Server, String> {
        let (socket, log) = (dir.join("virtiofs.sock"), dir.join("virtiofs.log"));
        let file = File::create(&log).map_err(|e| format!("{}: {e}", log.display()))?;
        let mut command = Command::new(lanefs);
        command.args(["virtiofs", "--queues", "2", "--socket"]).arg(&socket).arg(image);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(file);
        let process = command.spawn().map_err(|e| format!("{}: {e}", child::describe(&command)))?;
        let mut server = Server { process, socket, log };
        let mut line = String::new();
        let out = server.process.stdout.as_mut().ok_or("no output")?;
        BufReader::new(out).read_line(&mut line).map_err(|e| e.to_string())?;
        if line.contains("vhost-user-fs-pci") { Ok(server) } else { Err(server.messages()) }
    }

    /// Waits until it has closed the volume by itself.
    pub fn wait(&mut self) -> Result<(), String> {
        match child::wait(&mut self.process, Duration::from_secs(120)) {
            Ok(Some(status)) if status.success() => Ok(()),
            Ok(Some(status)) => Err(format!("lanefs virtiofs: {status}\n{}", self.messages())),
            _ => Err("lanefs virtiofs: still there when the virtual machine is gone".into()),
        }
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        child::kill(self.process.id());
        let _ = self.process.wait();
    }

    fn messages(&self) -> String {
        tail(&std::fs::read_to_string(&self.log).unwrap_or_default(), 15)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Ok(None) = self.process.try_wait() {
            self.kill();
        }
    }
}

/// QEMU, with the volume as a device.
pub struct Machine {
    process: Child,
    lines: Receiver<String>,
    said: Vec<String>,
}

impl Machine {
    /// Starts a guest that does one stage of init.sh. `disk`: another disk of it.
    pub fn start(
        kernel: &Kernel,
        stage: &str,
        server: &Server,
        disk: Option<&Path>,
    ) -> Result<Machine, String> {
        let mut command = Command::new("qemu-system-x86_64");
        command.args(["-M", "q35", "-accel", "tcg", "-m", MEMORY, "-nographic", "-no-reboot", "-nodefaults"]);
        command.args(["-serial", "stdio", "-smp", "2"]);
        command.arg("-kernel").arg(&kernel.image).arg("-initrd").arg(&kernel.initrd);
        command.arg("-append").arg(format!("console=ttyS0 quiet panic=-1 lanefs={stage}"));
        command.arg("-object").arg(format!("memory-backend-memfd,id=mem,size={MEMORY},share=on"));
        command.args(["-numa", "node,memdev=mem", "-chardev"]);
        command.arg(format!("socket,id=lanefs,path={}", server.socket.display()));
        command.args([
            "-device",
            "vhost-user-fs-pci,chardev=lanefs,tag=home,queue-size=1024,num-request-queues=2",
        ]);
        if let Some(disk) = disk {
            command.arg("-drive").arg(format!("file={},if=virtio,format=raw", disk.display()));
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut process = command.spawn().map_err(|e| format!("{}: {e}", child::describe(&command)))?;
        let out = process.stdout.take().ok_or("no output")?;
        let (tell, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(out).split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line).trim_end().to_string();
                if tell.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Machine { process, lines, said: Vec::new() })
    }

    /// Waits until the guest says this; what it said before is returned.
    pub fn wait_for(&mut self, line: &str) -> Result<Vec<String>, String> {
        let end = Instant::now() + LIMIT;
        loop {
            match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(said) => {
                    let found = said == line;
                    let failed = said.contains("guest: ") && !found;
                    self.said.push(said);
                    if found {
                        return Ok(self.said.clone());
                    }
                    if failed {
                        return Err(self.last_words());
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    return Err(format!("{line}: not said\n{}", self.last_words()));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(format!("the virtual machine is gone\n{}", self.last_words()));
                }
            }
        }
    }

    /// Waits until the virtual machine has ended by itself.
    pub fn wait(&mut self) -> Result<(), String> {
        match child::wait(&mut self.process, Duration::from_secs(120)) {
            Ok(Some(status)) if status.success() => Ok(()),
            other => Err(format!("the virtual machine: {other:?}\n{}", self.last_words())),
        }
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        child::kill(self.process.id());
        let _ = self.process.wait();
    }

    /// Kills it if it is still there, and returns all that it said.
    pub fn end(mut self) -> Vec<String> {
        self.kill();
        // The thread that reads ends with the pipe.
        let rest: Vec<String> = self.lines.iter().collect();
        self.said.extend(rest);
        std::mem::take(&mut self.said)
    }

    fn last_words(&self) -> String {
        tail(&self.said.join("\n"), 20)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if let Ok(None) = self.process.try_wait() {
            self.kill();
        }
    }
}
