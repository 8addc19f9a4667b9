//! `--signal USR1@60`: the signal that tells a program that its lease ends, and how long before.

use signal_hook::low_level::signal_name;
use sublet_wire::Notice;

/// The default number of seconds before the end.
const BEFORE_S: u64 = 60;
/// The longest notice. The preempting waiter has to wait for it.
const BEFORE_MAX_S: u64 = 600;
/// The last signal that has a name.
const NUMBER_MAX: i32 = 31;

/// Reads `USR1@60`, `SIGUSR1` or `10@30`.
pub fn parse(text: &str) -> Result<Notice, String> {
    let hint = "write a signal and the seconds before the end, such as USR1@60";
    let (signal, before) = text.split_once('@').map_or((text, None), |(signal, before)| (signal, Some(before)));
    let before_s = match before {
        None => BEFORE_S,
        Some(digits) => {
            let seconds = digits.parse().ok().filter(|_| digits.bytes().all(|byte| byte.is_ascii_digit()));
            seconds
                .filter(|seconds| *seconds <= BEFORE_MAX_S)
                .ok_or_else(|| format!("`{digits}` is not a number of seconds up to 600\nhint: {hint}"))?
        }
    };
    let number = number_of(signal).ok_or_else(|| format!("`{signal}` is not a signal\nhint: {hint}"))?;
    match name_of(number).filter(|name| Notice::SIGNALS.contains(name)) {
        Some(name) => Ok(Notice { signal: name.to_owned(), before_s }),
        None => {
            let known = Notice::SIGNALS.join(", ");
            Err(format!("`{signal}` cannot announce the end of a lease\nhint: choose one of {known}"))
        }
    }
}

/// The notice as it would be typed.
pub fn typed(notice: &Notice) -> String {
    match notice.before_s {
        BEFORE_S => notice.signal.clone(),
        before_s => format!("{}@{before_s}", notice.signal),
    }
}

fn number_of(signal: &str) -> Option<i32> {
    if !signal.is_empty() && signal.bytes().all(|byte| byte.is_ascii_digit()) {
        return signal.parse().ok().filter(|number| (1..=NUMBER_MAX).contains(number));
    }
    let upper = signal.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    (1..=NUMBER_MAX).find(|number| name_of(*number) == Some(name))
}

fn name_of(number: i32) -> Option<&'static str> {
    signal_name(number).and_then(|name| name.strip_prefix("SIG"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_may_be_a_name_or_a_number() {
        for text in ["USR1@60", "SIGUSR1", "usr1", "sigusr1@60", "10", "10@60"] {
            assert_eq!(parse(text), Ok(Notice { signal: "USR1".into(), before_s: 60 }), "{text}");
        }
        assert_eq!(parse("TERM@0"), Ok(Notice { signal: "TERM".into(), before_s: 0 }));
        for name in Notice::SIGNALS {
            assert_eq!(parse(name), Ok(Notice { signal: name.into(), before_s: 60 }));
        }
    }

    #[test]
    fn what_is_no_signal_or_no_time_is_refused() {
        for text in ["", "@60", "USR9@60", "0", "32", "USR1@", "USR1@-1", "USR1@+1", "USR1@601", "USR1@1m", "-10"] {
            assert!(parse(text).is_err_and(|error| error.contains("hint: ")), "{text}");
        }
        for text in ["KILL@60", "9", "SIGSTOP", "SEGV", "TSTP", "16"] {
            assert!(parse(text).is_err_and(|error| error.contains("hint: choose one of HUP, INT,")), "{text}");
        }
    }

    #[test]
    fn what_was_read_can_be_typed_again() {
        for text in ["USR1", "USR2@120", "WINCH@5"] {
            assert_eq!(parse(text).map(|notice| typed(&notice)).as_deref(), Ok(text));
        }
    }
}
