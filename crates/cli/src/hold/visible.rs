//! The GPUs that the caller can see, which limit what it is given.
//!
//! Slurm, containers and users limit the GPUs of a program by `CUDA_VISIBLE_DEVICES`. A request stays within that
//! limit: the list is sent with it, so that no other GPU is granted. The granted GPUs get the names that the caller
//! uses for them.

use super::ask::VisibleArg;
use crate::failure::Failure;
use crate::table::plain;
use crate::text;
use std::env;
use sublet_wire::{Code, Gpu, Gpus, Lease, exit};

/// The GPUs that are visible to the caller; `None` is all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Visible(Option<Vec<String>>);

impl Visible {
    /// All of them: the caller is not limited, or the GPUs are of another host.
    pub const ALL: Visible = Visible(None);

    /// The GPUs in the caller's own `CUDA_VISIBLE_DEVICES`, unless that came from another lease.
    pub fn here() -> Result<Visible, Failure> {
        let own = if env::var_os("SUBLET_LEASE").is_some() { None } else { env::var_os("CUDA_VISIBLE_DEVICES") };
        own.map_or(Ok(Visible::ALL), |list| Visible::read(&list.to_string_lossy()))
    }

    /// Parses the list as CUDA does: up to the first name that is invalid.
    fn read(list: &str) -> Result<Visible, Failure> {
        let is_name = |name: &&str| !matches!(*name, "" | "-1" | "NoDevFiles");
        let names: Vec<String> = list.split(',').map(str::trim).take_while(is_name).map(str::to_owned).collect();
        if names.is_empty() {
            return Err(Failure::new(
                exit::DENIED,
                format!("CUDA_VISIBLE_DEVICES is `{}` here, which means no GPU", plain(list)),
            )
            .hint("unset it, or set it to the GPUs that may be used"));
        }
        Ok(Visible(Some(names)))
    }

    /// The GPUs to request: those that are visible, and of them those that `--on` names.
    pub fn narrow(
        &self,
        on: Option<String>,
        gpus: impl FnOnce() -> Result<Gpus, Failure>,
    ) -> Result<Option<String>, Failure> {
        let (names, on) = match (&self.0, on) {
            (None, on) => return Ok(on),
            (Some(names), None) => return Ok(Some(names.join(","))),
            (Some(names), Some(on)) => (names, on),
        };
        let is_meant = |gpu: &Gpu| {
            names.iter().any(|name| is_called(gpu.index, &gpu.uuid, name))
                && on.split(',').any(|part| is_on(gpu, part.trim()))
        };
        let both: Vec<String> = gpus()?.gpus.into_iter().filter(is_meant).map(|gpu| gpu.uuid).collect();
        match both.is_empty() {
            true => Err(Failure::new(
                exit::DENIED,
                format!("`--on {}` names no GPU that is visible here: {}", plain(&on), said(names)),
            )
            .hint("choose another, or unset CUDA_VISIBLE_DEVICES")),
            false => Ok(Some(both.join(","))),
        }
    }

    /// Adds to a refusal why other GPUs were not requested.
    pub fn explain(&self, failure: Failure) -> Failure {
        match (&self.0, failure.code()) {
            (Some(names), Some(Code::NeverFits)) => {
                failure.hint(format!("no other GPU was requested: {}", said(names)))
            }
            _ => failure,
        }
    }

    /// The names by which a holder refers to the GPUs of its lease.
    pub fn names(&self, lease: &Lease, how: VisibleArg) -> Result<Vec<String>, Failure> {
        let called = |(index, uuid): (&u32, &String)| match (how, &self.0) {
            (VisibleArg::Index, None) => Ok(index.to_string()),
            (VisibleArg::Uuid, None) => Ok(uuid.clone()),
            (how, Some(names)) => {
                let name = names.iter().find(|name| is_called(*index, uuid, name));
                let name = name.ok_or_else(|| unseen(lease, names))?;
                Ok(if how == VisibleArg::Index { name.clone() } else { uuid.clone() })
            }
        };
        lease.gpu_indices.iter().zip(&lease.gpu_uuids).map(called).collect()
    }
}

/// Whether a name means this GPU. CUDA accepts an index, a UUID, or a prefix of one.
fn is_called(index: u32, uuid: &str, name: &str) -> bool {
    match name.parse::<u32>() {
        Ok(number) => number == index,
        Err(_) => name.len() > "GPU-".len() && uuid.starts_with(name),
    }
}

/// Whether one part of `on` means this GPU, as the daemon reads it.
fn is_on(gpu: &Gpu, part: &str) -> bool {
    let is_model = !part.is_empty() && gpu.name.to_lowercase().contains(&part.to_lowercase());
    is_called(gpu.index, &gpu.uuid, part) || (part.parse::<u32>().is_err() && is_model)
}

fn said(names: &[String]) -> String {
    format!("CUDA_VISIBLE_DEVICES is `{}`", plain(&names.join(",")))
}

fn unseen(lease: &Lease, names: &[String]) -> Failure {
    Failure::new(
        exit::DENIED,
        format!("{} is on {}, but {} here", lease.id, text::gpus(&lease.gpu_indices), said(names)),
    )
    .hint("is it a daemon of another version? ask again with CUDA_VISIBLE_DEVICES unset")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use expect_test::expect;

    fn read(list: &str) -> Visible {
        Visible::read(list).unwrap()
    }

    fn names(visible: &Visible, how: VisibleArg) -> String {
        match visible.names(&sample::two_gpu_lease(), how) {
            Ok(names) => names.join(","),
            Err(failure) => format!("{}: {failure}", failure.exit()),
        }
    }

    #[test]
    fn without_a_limit_gpus_are_named_by_index_or_uuid() {
        assert_eq!(names(&Visible::ALL, VisibleArg::Index), "2,3");
        assert_eq!(names(&Visible::ALL, VisibleArg::Uuid), "GPU-2c,GPU-3d");
    }

    #[test]
    fn within_a_list_the_callers_own_names_are_used() {
        assert_eq!(names(&read("0,3,2"), VisibleArg::Index), "2,3");
        assert_eq!(names(&read("GPU-3d,GPU-2c"), VisibleArg::Index), "GPU-2c,GPU-3d");
        assert_eq!(names(&read("3, 2"), VisibleArg::Uuid), "GPU-2c,GPU-3d");
    }

    #[test]
    fn a_gpu_outside_the_list_is_refused() {
        expect![[r#"
            77: L7 is on GPUs 2, 3, but CUDA_VISIBLE_DEVICES is `0,1` here
            hint: is it a daemon of another version? ask again with CUDA_VISIBLE_DEVICES unset"#]]
        .assert_eq(&names(&read("0,1"), VisibleArg::Index));
        assert!(names(&read("0,GPU-"), VisibleArg::Index).starts_with("77"));
    }

    #[test]
    fn an_empty_list_is_no_gpu() {
        for list in ["", " ", "-1", "NoDevFiles", ",0"] {
            assert_eq!(Visible::read(list).unwrap_err().exit(), exit::DENIED, "{list:?}");
        }
        expect![[r#"
            CUDA_VISIBLE_DEVICES is `` here, which means no GPU
            hint: unset it, or set it to the GPUs that may be used"#]]
        .assert_eq(&Visible::read("").unwrap_err().to_string());
        assert_eq!(read("1,-1,0"), read("1"), "CUDA reads up to the first that is none");
    }

    #[test]
    fn what_is_asked_for_is_among_what_is_seen() {
        let narrow = |visible: &Visible, on: Option<&str>| {
            visible.narrow(on.map(str::to_owned), || Ok(sample::gpus())).map_err(|failure| failure.to_string())
        };
        assert_eq!(narrow(&Visible::ALL, None), Ok(None));
        assert_eq!(narrow(&Visible::ALL, Some("H200")), Ok(Some("H200".into())));
        assert_eq!(narrow(&read("1,GPU-2c"), None), Ok(Some("1,GPU-2c".into())));
        assert_eq!(narrow(&read("1,0"), Some("a100")), Ok(Some("GPU-0a,GPU-1b".into())));
        assert_eq!(narrow(&read("1,0"), Some("2,1")), Ok(Some("GPU-1b".into())));
        assert_eq!(narrow(&read("GPU-0a"), Some("GPU-0")), Ok(Some("GPU-0a".into())));
        expect![[r#"
            `--on 2` names no GPU that is visible here: CUDA_VISIBLE_DEVICES is `1,0`
            hint: choose another, or unset CUDA_VISIBLE_DEVICES"#]]
        .assert_eq(&narrow(&read("1,0"), Some("2")).unwrap_err());
    }
}
