//! Signals by name and number.

/// Signals with a usual name, by Linux numbers on the supported machines.
const NAMES: [(&str, u8); 23] = [
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("ILL", 4),
    ("TRAP", 5),
    ("ABRT", 6),
    ("BUS", 7),
    ("FPE", 8),
    ("KILL", 9),
    ("USR1", 10),
    ("SEGV", 11),
    ("USR2", 12),
    ("PIPE", 13),
    ("ALRM", 14),
    ("TERM", 15),
    ("CHLD", 17),
    ("CONT", 18),
    ("STOP", 19),
    ("TSTP", 20),
    ("URG", 23),
    ("XCPU", 24),
    ("WINCH", 28),
    ("PWR", 30),
];

/// The last signal that has a name.
const NUMBER_MAX: u8 = 31;

/// The number of a signal: `USR1`, `SIGUSR1`, `sigusr1` or `10`.
pub fn number(text: &str) -> Option<u8> {
    if let Ok(number) = text.parse::<u8>() {
        return (1..=NUMBER_MAX).contains(&number).then_some(number);
    }
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    NAMES.iter().find(|(known, _)| *known == name).map(|(_, number)| *number)
}

/// A signal's name for people.
pub fn name(number: u8) -> String {
    match NAMES.iter().find(|(_, known)| *known == number) {
        Some((name, _)) => format!("SIG{name}"),
        None => format!("signal {number}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sublet_core::request::LeaseRequest;
    use sublet_wire::Notice;

    #[test]
    fn signals_of_a_notice_are_the_same_for_core_and_for_people() {
        assert_eq!(Notice::SIGNALS.map(number), LeaseRequest::NOTICE_SIGNALS.map(Some));
    }

    #[test]
    fn a_signal_is_known_by_its_name_and_by_its_number() {
        for text in ["USR1", "SIGUSR1", "sigusr1", "10"] {
            assert_eq!(number(text), Some(10), "{text}");
        }
        for text in ["", "SIG", "USR3", "0", "32", "-1", "256", "NULL"] {
            assert_eq!(number(text), None, "{text}");
        }
        assert_eq!((name(15), name(31)), ("SIGTERM".to_owned(), "signal 31".to_owned()));
    }
}
