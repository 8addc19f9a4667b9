//! What a holder finds in its environment.
//!
//! `CUDA_VISIBLE_DEVICES` replaces the caller's own; it does not add to it.

use super::ask::VisibleArg;
use super::visible::Visible;
use crate::failure::Failure;
use sublet_wire::Lease;

/// The variables of a holder, in order.
pub type Variables = Vec<(&'static str, String)>;

/// The variables for a granted lease. `daemon` says where it was granted, `visible` what the caller sees already.
pub fn variables(
    lease: &Lease,
    names: VisibleArg,
    daemon: &(&'static str, String),
    visible: &Visible,
) -> Result<Variables, Failure> {
    let cards = visible.names(lease, names)?;
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
    use expect_test::expect;

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
