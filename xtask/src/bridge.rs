//! A TCP port on the loopback that leads to a Unix socket, for tools that know only TCP.

use anyhow::{Context, Result};
use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;

/// Opens a port that leads to `socket` for as long as this program runs; returns its number.
pub fn open(socket: &Path) -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context("no port could be opened on 127.0.0.1")?;
    let port = listener.local_addr()?.port();
    let socket = socket.to_path_buf();
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            copy_both_ways(client, socket.clone());
        }
    });
    Ok(port)
}

/// Copies both ways until one side closes. The client notices a lost connection itself.
fn copy_both_ways(client: TcpStream, socket: PathBuf) {
    thread::spawn(move || -> io::Result<()> {
        let service = UnixStream::connect(&socket)?;
        let (mut from_client, mut to_service) = (client.try_clone()?, service.try_clone()?);
        let up = thread::spawn(move || {
            // Either end may vanish at any time; the other must then be closed.
            let _ = io::copy(&mut from_client, &mut to_service);
            let _ = to_service.shutdown(Shutdown::Write);
        });
        let _ = io::copy(&mut &service, &mut &client);
        let _ = client.shutdown(Shutdown::Both);
        let _ = up.join();
        Ok(())
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;

    #[test]
    fn bytes_go_both_ways_and_closing_reaches_the_client() {
        let socket = std::env::temp_dir().join(format!("xtask-bridge-{}", std::process::id()));
        let listener = UnixListener::bind(&socket).unwrap();
        let port = open(&socket).unwrap();
        let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        client.write_all(b"ask").unwrap();
        let (mut service, _) = listener.accept().unwrap();
        let mut asked = [0; 3];
        service.read_exact(&mut asked).unwrap();
        service.write_all(b"answer").unwrap();
        drop(service);
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert_eq!((&asked, answer.as_str()), (b"ask", "answer"));
        std::fs::remove_file(socket).unwrap();
    }
}
