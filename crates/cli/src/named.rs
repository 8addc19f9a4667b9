//! Finds leases by the names that their owners gave them.

use crate::args::LeaseName;
use crate::client::Client;
use crate::failure::Failure;
use crate::table::plain;
use crate::text;
use sublet_wire::{Code, Lease, Problem};

/// The number of matches listed for an ambiguous name.
const LISTED_MAX: usize = 8;

impl Client {
    /// The id of the lease that was typed. A name is looked up among the caller's leases that have not ended.
    pub fn id_of(&self, typed: &LeaseName) -> Result<String, Failure> {
        match typed {
            LeaseName::Id(_) => Ok(typed.to_string()),
            LeaseName::Name(name) => one_of(name, &self.leases_called(name)?),
        }
    }

    /// The caller's leases of this name that have not ended; an error if there is none.
    pub fn leases_called(&self, name: &str) -> Result<Vec<Lease>, Failure> {
        let mut leases = self.leases(false)?.leases;
        leases.retain(|lease| lease.name.as_deref() == Some(name));
        if leases.is_empty() {
            let detail = format!("no lease of yours is called `{}`", plain(name));
            let hint = "`sublet ps` lists yours; a lease that has ended is named by its id, such as L7";
            return Err(Problem::new(Code::NoSuchLease, detail).hint(hint).into());
        }
        Ok(leases)
    }
}

fn one_of(name: &str, leases: &[Lease]) -> Result<String, Failure> {
    let [lease] = leases else {
        let mut listed: Vec<String> = leases.iter().take(LISTED_MAX).map(described).collect();
        listed.extend((leases.len() > LISTED_MAX).then(|| "…".to_owned()));
        let first = leases.first().map_or("L7", |lease| lease.id.as_str());
        let (count, name) = (leases.len(), plain(name));
        return Err(Failure::usage(format!("{count} leases are called `{name}`: {}", listed.join(", ")))
            .hint(format!("name one by its id, such as {first}")));
    };
    Ok(lease.id.clone())
}

/// `L7 (active, 8 GiB on GPU 0)`.
fn described(lease: &Lease) -> String {
    let state = text::lease_state(lease.state);
    match lease.vram_bytes {
        Some(_) => format!("{} ({state}, {})", lease.id, text::granted(lease)),
        None => format!("{} ({state})", lease.id),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use expect_test::expect;

    #[test]
    fn an_ambiguous_name_lists_the_leases_that_have_it() {
        let two = [sample::lease(), sample::waiting()];
        expect![[r#"
            2 leases are called `train`: L7 (active, 10 GiB on GPU 0), L8 (waiting)
            hint: name one by its id, such as L7"#]]
        .assert_eq(&one_of("train", &two).unwrap_err().to_string());
        assert_eq!(one_of("train", &two[..1]).unwrap(), "L7");
    }
}
