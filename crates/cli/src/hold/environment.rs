//! What a holder finds in its environment.
//!
//! `CUDA_VISIBLE_DEVICES` replaces the caller's own; it does not add to it. Where the
//! caller already sees only some cards (Slurm, a container), the granted ones must be
//! among them, and are called what the caller calls them.

use super::ask::VisibleArg;
use crate::failure::Failure;
use crate::text;
use sublet_wire::{Lease, exit};

/// The variables of a holder, in order.
pub type Variables = Vec<(&'static str, String)>;

/// The caller's own `CUDA_VISIBLE_DEVICES`, unless it came from another lease.
pub fn seen_before() -> Option<String> {
    match std::env::var_os("SUBLET_LEASE") {
        Some(_) => None,
        None => std::env::var("CUDA_VISIBLE_DEVICES").ok(),
    }
}

/// The variables for a granted lease. `daemon` says where it was granted, `before` is the caller's own `CUDA_VISIBLE_DEVICES`.
pub fn variables(
    lease: &Lease,
    visible: VisibleArg,
    daemon: &(&'static str, String),
    before: Option<&str>,
) -> Result<Variables, Failure> {
    let cards = match visible_list(before) {
        None => own_names(lease, visible),
        Some(list) => within(lease, visible, &list)?,
    };
    let deadline = lease.expires_unix_s.unwrap_or(0.0).max(0.0) as u64;
    let mut variables = vec![
        ("CUDA_VISIBLE_DEVICES", cards.join(",")),
        ("CUDA_DEVICE_ORDER", "PCI_BUS_ID".into()),
        ("SUBLET_LEASE", lease.id.clone()),
        ("SUBLET_EPOCH", lease.epoch.unwrap_or(0).to_string()),
        ("SUBLET_DEADLINE", deadline.to_string()),
        daemon.clone(),
    ];
    // An earlier service tells none.
    variables.extend(lease.mark.clone().map(|mark| ("SUBLET_MARK", mark)));
    Ok(variables)
}

/// What the caller sees already; `None`: no limit. An empty list means that nothing was
/// leased yet, which is just what changes now.
fn visible_list(before: Option<&str>) -> Option<Vec<&str>> {
    let list: Vec<&str> = before?.split(',').map(str::trim).filter(|token| !token.is_empty()).collect();
    if matches!(list[..], [] | ["-1"] | ["NoDevFiles"]) { None } else { Some(list) }
}

fn own_names(lease: &Lease, visible: VisibleArg) -> Vec<String> {
    match visible {
        VisibleArg::Index => lease.card_indices.iter().map(u32::to_string).collect(),
        VisibleArg::Uuid => lease.cards.clone(),
    }
}

fn within(lease: &Lease, visible: VisibleArg, list: &[&str]) -> Result<Vec<String>, Failure> {
    let name = |(index, uuid): (&u32, &String)| {
        let token = list.iter().find(|token| names(token, *index, uuid)).ok_or_else(|| unseen(lease, list))?;
        Ok(match visible {
            VisibleArg::Index => (*token).to_owned(),
            VisibleArg::Uuid => uuid.clone(),
        })
    };
    lease.card_indices.iter().zip(&lease.cards).map(name).collect()
}

/// CUDA takes an index, a UUID, or a beginning of one.
fn names(token: &str, index: u32, uuid: &str) -> bool {
    match token.parse::<u32>() {
        Ok(number) => number == index,
        Err(_) => token.len() > "GPU-".len() && uuid.starts_with(token),
    }
}

fn unseen(lease: &Lease, list: &[&str]) -> Failure {
    let message = format!(
        "{} is on {}, but CUDA_VISIBLE_DEVICES is `{}` here",
        lease.id,
        text::cards(&lease.card_indices),
        list.join(",")
    );
    Failure::new(exit::DENIED, message)
        .hint(format!("ask for a card that is visible here with `--on {}`, or unset CUDA_VISIBLE_DEVICES", list[0]))
}

/// `export` lines that a Bourne shell evaluates.
pub fn for_sh(variables: &Variables) -> String {
    variables.iter().map(|(name, value)| format!("export {name}={}\n", word_of_sh(value))).collect()
}

/// `set -gx` lines that fish evaluates.
pub fn for_fish(variables: &Variables) -> String {
    variables.iter().map(|(name, value)| format!("set -gx {name} {};\n", word_of_fish(value))).collect()
}

/// A text that a Bourne shell reads as one word.
pub fn word_of_sh(text: &str) -> String {
    quoted(text, r"'\''")
}

/// A text that fish reads as one word.
pub fn word_of_fish(text: &str) -> String {
    quoted(&text.replace('\\', r"\\"), r"\'")
}

fn quoted(value: &str, quote: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@,".contains(c);
    if !value.is_empty() && value.chars().all(is_plain) {
        value.to_owned()
    } else {
        format!("'{}'", value.replace('\'', quote))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use expect_test::expect;

    fn visible(before: Option<&str>, visible: VisibleArg) -> String {
        let lease = sample::two_card_lease();
        match variables(&lease, visible, &("SUBLET_SOCKET", "/run/s".to_owned()), before) {
            Ok(variables) => variables[0].1.clone(),
            Err(failure) => format!("{}: {failure}", failure.exit()),
        }
    }

    #[test]
    fn cards_are_named_by_index_or_uuid() {
        assert_eq!(visible(None, VisibleArg::Index), "2,3");
        assert_eq!(visible(None, VisibleArg::Uuid), "GPU-2c,GPU-3d");
    }

    #[test]
    fn nothing_visible_before_means_no_lease_before() {
        for before in ["", " ", "-1", "NoDevFiles"] {
            assert_eq!(visible(Some(before), VisibleArg::Index), "2,3", "{before:?}");
        }
    }

    #[test]
    fn within_a_list_the_callers_own_names_are_used() {
        assert_eq!(visible(Some("0,3,2"), VisibleArg::Index), "2,3");
        assert_eq!(visible(Some("GPU-3d,GPU-2c"), VisibleArg::Index), "GPU-2c,GPU-3d");
        assert_eq!(visible(Some("3,2"), VisibleArg::Uuid), "GPU-2c,GPU-3d");
    }

    #[test]
    fn a_card_outside_the_list_is_refused() {
        expect![[r#"
            77: L7 is on cards 2, 3, but CUDA_VISIBLE_DEVICES is `0,1` here
            hint: ask for a card that is visible here with `--on 0`, or unset CUDA_VISIBLE_DEVICES"#]]
        .assert_eq(&visible(Some("0,1"), VisibleArg::Index));
        assert!(visible(Some("0,GPU-"), VisibleArg::Index).starts_with("77"));
    }

    #[test]
    fn shells_read_the_lines_back() {
        let variables: Variables = vec![("A", "0,1".into()), ("B", r"it's a \ path".into()), ("C", String::new())];
        expect![[r#"
            export A=0,1
            export B='it'\''s a \ path'
            export C=''
        "#]]
        .assert_eq(&for_sh(&variables));
        expect![[r#"
            set -gx A 0,1;
            set -gx B 'it\'s a \\ path';
            set -gx C '';
        "#]]
        .assert_eq(&for_fish(&variables));
    }
}
