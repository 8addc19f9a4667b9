//! Files in an object store.
//!
//! ```text
//! s3://BUCKET/models/job:7/000041-f3-NONCE/state      a file is an object
//!             ──────────────────────────────          a directory is a prefix: it is there while an object has it
//!             models/job:7/latest                     a link is an object that holds its target
//! ```
//!
//! A file of at most 16 MiB is written by one request, a larger one in parts of 16 MiB that become one object at the
//! end. So no file is ever seen half-written. A file, a link and a removal are durable when the call returns.
//!
//! A process that is killed may leave parts of a large file that no listing shows. They cost room until a rule of the
//! bucket removes incomplete uploads.
//!
//! Absent on purpose: renaming. It would copy every byte, and others would see half of the copy.

use super::{Files, ReadFile, WriteFile};
use crate::object::{ObjectBucket, ObjectError, PendingCall};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::path::{Path as Key, PathPart};
use object_store::{MultipartUpload, ObjectStoreExt, PutPayload};
use std::cell::RefCell;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// The size of the parts of a large file. A store takes at most 10,000 of them, which are 156 GiB.
const PART_BYTES: usize = 16 << 20;

/// Uploads at once. So many parts are in memory.
const UPLOADS_MAX: usize = 8;

/// Bytes that one request of a reader fetches, and how many requests run at once.
const READ_BYTES: u64 = 4 << 20;
const READS_AT_ONCE: usize = 8;

/// The longest target of a link.
const LINK_BYTES_MAX: u64 = 4_096;

/// The files of a bucket. Paths begin with the bucket's name.
#[derive(Clone, Debug)]
pub struct ObjectFiles {
    bucket: ObjectBucket,
    uploads: Arc<UploadSlots>,
}

impl ObjectFiles {
    /// The files of this bucket.
    pub fn new(bucket: ObjectBucket) -> ObjectFiles {
        ObjectFiles { bucket, uploads: Arc::default() }
    }

    /// The key of a file, or the prefix of a directory.
    fn key(&self, path: &Path) -> io::Result<Key> {
        let outside = || io::Error::other(format!("`{}` is not in {}", path.display(), self.bucket.url()));
        let inside = path.strip_prefix(self.bucket.url()).map_err(|_| outside())?;
        let components: Option<Vec<&str>> = inside.iter().map(|component| component.to_str()).collect();
        Ok(components.ok_or_else(outside)?.into_iter().map(PathPart::from).collect())
    }
}

impl Files for ObjectFiles {
    fn has_directories(&self) -> bool {
        false
    }

    fn create_dir(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn WriteFile>> {
        let content = NewContent::Small(Vec::new());
        Ok(Box::new(NewObject { files: self.clone(), key: self.key(path)?, content }))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn ReadFile>> {
        let key = self.key(path)?;
        let looked_up = key.clone();
        let found = self.bucket.call(|store| async move { store.head(&looked_up).await })?;
        Ok(Box::new(StoredObject { bucket: self.bucket.clone(), key, length: found.size, window: RefCell::default() }))
    }

    fn hard_link(&self, existing: &Path, new: &Path) -> io::Result<()> {
        let (from, to) = (self.key(existing)?, self.key(new)?);
        Ok(self.bucket.call(|store| async move { store.copy(&from, &to).await })?)
    }

    fn rename(&self, _: &Path, _: &Path) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn symlink(&self, target: &str, link: &Path) -> io::Result<()> {
        let (key, target) = (self.key(link)?, PutPayload::from(target.to_owned()));
        Ok(self.bucket.call(|store| async move { store.put(&key, target).await.map(|_| ()) })?)
    }

    fn read_link(&self, link: &Path) -> io::Result<Option<String>> {
        match super::read_small(self, link, LINK_BYTES_MAX) {
            Ok(target) => Ok(String::from_utf8(target).ok()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        let prefix = self.key(directory)?;
        let listed = self.bucket.call(|store| async move { store.list_with_delimiter(Some(&prefix)).await })?;
        let files = listed.objects.into_iter().map(|object| object.location);
        let names = listed.common_prefixes.into_iter().chain(files);
        let mut names: Vec<String> = names.filter_map(|key| key.filename().and_then(decoded)).collect();
        names.sort();
        Ok(names)
    }

    fn list_below(&self, directory: &Path) -> io::Result<Vec<String>> {
        let prefix = self.key(directory)?;
        let listed = prefix.clone();
        let keys = self.bucket.call(|store| async move {
            store.list(Some(&listed)).map_ok(|object| object.location).try_collect::<Vec<Key>>().await
        })?;
        let below = |key: &Key| {
            let components: Option<Vec<String>> =
                key.prefix_match(&prefix)?.map(|part| decoded(part.as_ref())).collect();
            components.map(|components| components.join("/"))
        };
        Ok(keys.iter().filter_map(below).collect())
    }

    fn check_dir(&self, directory: &Path) -> io::Result<()> {
        if self.list(directory)?.is_empty() { Err(io::ErrorKind::NotFound.into()) } else { Ok(()) }
    }

    fn remove_dir_all(&self, directory: &Path) -> io::Result<()> {
        let prefix = self.key(directory)?;
        Ok(self.bucket.call(|store| async move {
            let found: Vec<_> = store.list(Some(&prefix)).map_ok(|object| object.location).try_collect().await?;
            let removed = store.delete_stream(stream::iter(found.into_iter().map(Ok)).boxed());
            removed.filter(|removed| std::future::ready(!is_missing(removed))).try_for_each(|_| async { Ok(()) }).await
        })?)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let key = self.key(path)?;
        match self.bucket.call(|store| async move { store.delete(&key).await }) {
            Err(ObjectError::NotFound) => Ok(()),
            other => Ok(other?),
        }
    }

    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }
}

/// The name that a component of a key stands for: characters that few stores take are `%` and two digits in it.
fn decoded(component: &str) -> Option<String> {
    let mut parts = component.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        bytes.push(u8::from_str_radix(part.get(..2)?, 16).ok()?);
        bytes.extend_from_slice(part.get(2..)?.as_bytes());
    }
    String::from_utf8(bytes).ok()
}

fn is_missing<T>(outcome: &object_store::Result<T>) -> bool {
    matches!(outcome, Err(object_store::Error::NotFound { .. }))
}

/// An object that is being written.
struct NewObject {
    files: ObjectFiles,
    key: Key,
    content: NewContent,
}

/// How far it is.
enum NewContent {
    /// All of it is in memory.
    Small(Vec<u8>),
    /// Parts were sent; the rest is in memory.
    Large { upload: Box<dyn MultipartUpload>, parts: Vec<PendingCall<()>>, rest: Vec<u8> },
    /// It is being sent by one request.
    Sent(PendingCall<()>),
    /// It is an object, or it never will be.
    Done,
}

impl NewObject {
    /// Sends the part that is in memory.
    fn send_part(&mut self) -> io::Result<()> {
        let slot = UploadSlots::take(&self.files.uploads);
        let bucket = &self.files.bucket;
        if let NewContent::Small(bytes) = &mut self.content {
            let (rest, key) = (std::mem::take(bytes), self.key.clone());
            // If this fails, nothing more can be written.
            self.content = NewContent::Done;
            let upload = bucket.call(|store| async move { store.put_multipart(&key).await })?;
            self.content = NewContent::Large { upload, parts: Vec::new(), rest };
        }
        if let NewContent::Large { upload, parts, rest } = &mut self.content {
            let sent = upload.put_part(std::mem::take(rest).into());
            parts.push(bucket.start(|_| async move {
                let _slot = slot;
                sent.await
            }));
        }
        Ok(())
    }

    /// The bytes that are in memory and not sent.
    fn rest(&mut self) -> io::Result<&mut Vec<u8>> {
        match &mut self.content {
            NewContent::Small(rest) | NewContent::Large { rest, .. } => Ok(rest),
            NewContent::Sent(_) | NewContent::Done => Err(io::Error::other("the file is finished")),
        }
    }
}

impl WriteFile for NewObject {
    fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            if self.rest()?.len() == PART_BYTES {
                self.send_part()?;
            }
            let rest = self.rest()?;
            let taken = bytes.len().min(PART_BYTES - rest.len());
            rest.extend_from_slice(&bytes[..taken]);
            bytes = &bytes[taken..];
        }
        Ok(())
    }

    fn end(&mut self) -> io::Result<()> {
        match &mut self.content {
            NewContent::Small(bytes) => {
                let (payload, key) = (PutPayload::from(std::mem::take(bytes)), self.key.clone());
                let slot = UploadSlots::take(&self.files.uploads);
                self.content = NewContent::Sent(self.files.bucket.start(|store| async move {
                    let _slot = slot;
                    store.put(&key, payload).await.map(|_| ())
                }));
                Ok(())
            }
            NewContent::Large { rest, .. } if !rest.is_empty() => self.send_part(),
            NewContent::Large { .. } | NewContent::Sent(_) | NewContent::Done => Ok(()),
        }
    }

    fn finish(&mut self) -> io::Result<()> {
        self.end()?;
        match &mut self.content {
            NewContent::Large { parts, .. } => parts.drain(..).try_for_each(PendingCall::wait)?,
            NewContent::Small(_) | NewContent::Sent(_) | NewContent::Done => {}
        }
        match std::mem::replace(&mut self.content, NewContent::Done) {
            NewContent::Sent(sent) => Ok(sent.wait()?),
            NewContent::Large { mut upload, .. } => {
                Ok(self.files.bucket.call(|_| async move {
                    let completed = upload.complete().await.map(|_| ());
                    if completed.is_err() {
                        // The parts cost room until then.
                        let _ = upload.abort().await;
                    }
                    completed
                })?)
            }
            NewContent::Small(_) | NewContent::Done => Ok(()),
        }
    }
}

impl Drop for NewObject {
    fn drop(&mut self) {
        if let NewContent::Large { mut upload, .. } = std::mem::replace(&mut self.content, NewContent::Done) {
            // The bucket's rule for incomplete uploads removes what stays.
            let bucket = self.files.bucket.clone().with_call_limit(std::time::Duration::from_secs(5));
            let _ = bucket.call(|_| async move { upload.abort().await });
        }
    }
}

/// Bounds the uploads that run at once, and so the memory that they hold.
#[derive(Debug, Default)]
struct UploadSlots {
    taken: Mutex<usize>,
    given_back: Condvar,
}

/// One of the uploads that may run at once.
struct UploadSlot(Arc<UploadSlots>);

impl UploadSlots {
    /// Waits until fewer uploads run than may.
    fn take(slots: &Arc<UploadSlots>) -> UploadSlot {
        let taken = slots.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let is_full = |taken: &mut usize| *taken >= UPLOADS_MAX;
        let mut taken = slots.given_back.wait_while(taken, is_full).unwrap_or_else(PoisonError::into_inner);
        *taken += 1;
        UploadSlot(Arc::clone(slots))
    }
}

impl Drop for UploadSlot {
    fn drop(&mut self) {
        *self.0.taken.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.given_back.notify_one();
    }
}

/// An object that is read. It never changes.
struct StoredObject {
    bucket: ObjectBucket,
    key: Key,
    length: u64,
    /// Bytes that were fetched ahead, with the offset of the first.
    window: RefCell<(u64, Vec<Bytes>)>,
}

impl StoredObject {
    /// Fetches bytes by several requests at once.
    fn fetch(&self, range: Range<u64>) -> io::Result<Vec<Bytes>> {
        let starts = (range.start..range.end).step_by(READ_BYTES as usize);
        let ranges: Vec<Range<u64>> = starts.map(|from| from..range.end.min(from + READ_BYTES)).collect();
        let key = self.key.clone();
        Ok(self.bucket.call(|store| async move {
            let fetch = |range| {
                let (store, key) = (Arc::clone(&store), key.clone());
                async move { store.get_range(&key, range).await }
            };
            stream::iter(ranges).map(fetch).buffered(READS_AT_ONCE).try_collect().await
        })?)
    }

    /// Copies what the window has of these bytes; true if it has all of them.
    fn copy_from_window(&self, buffer: &mut [u8], offset: u64) -> bool {
        let window = self.window.borrow();
        let mut at = window.0;
        let mut filled = 0;
        for bytes in &window.1 {
            let wanted = offset + filled as u64;
            let end = at + bytes.len() as u64;
            if (at..end).contains(&wanted) && filled < buffer.len() {
                let from = (wanted - at) as usize;
                let taken = (bytes.len() - from).min(buffer.len() - filled);
                buffer[filled..filled + taken].copy_from_slice(&bytes[from..from + taken]);
                filled += taken;
            }
            at = end;
        }
        filled == buffer.len()
    }
}

impl ReadFile for StoredObject {
    fn length(&self) -> io::Result<u64> {
        Ok(self.length)
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let end = offset.saturating_add(buffer.len() as u64);
        if end > self.length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if self.copy_from_window(buffer, offset) {
            return Ok(());
        }
        let ahead = end.max(offset + READ_BYTES * READS_AT_ONCE as u64).min(self.length);
        *self.window.borrow_mut() = (offset, self.fetch(offset..ahead)?);
        if self.copy_from_window(buffer, offset) { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
}
