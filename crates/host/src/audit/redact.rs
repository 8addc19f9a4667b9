//! Removes secrets from command lines: an audit is kept for ever and read by many.
//!
//! Removed are: values of options, variables, headers and fields with a name that says secret; the user part of a
//! URL; words that look like a key of a known service, or like random characters. The program, its options and the
//! names of files stay readable. A word removed by mistake costs a glance at the process; a published secret cannot
//! be taken back. So in doubt a word is removed.
//!
//! ```text
//!   arguments ──► words (spaces inside an argument count: `sh -c "…"` is a command line, too)
//!   word      ──► fields (`a=1;password=x`, `…?token=x&y=2`) ──► patterns in what is left
//! ```
//! Absent: reading anything, and dictionaries of languages. A secret that looks like a file name and follows a
//! harmless word is not found.

/// Replaces a secret.
pub(super) const REDACTED: &str = "***";

/// A name that contains one of these says that its value is secret.
const SECRET_PARTS: [&str; 24] = [
    "password",
    "passwd",
    "passphrase",
    "passcode",
    "pass",
    "pwd",
    "pw",
    "secret",
    "secrets",
    "apikey",
    "authorization",
    "bearer",
    "credential",
    "credentials",
    "cred",
    "creds",
    "cookie",
    "privatekey",
    "accesskey",
    "secretkey",
    "signature",
    "sig",
    "otp",
    "jwt",
];
/// `key` is secret after one of these: `api-key`, `ACCESS_KEY`. Others are names (`--sort-key`).
const BEFORE_KEY: [&str; 12] = [
    "api",
    "access",
    "secret",
    "private",
    "auth",
    "account",
    "encryption",
    "signing",
    "license",
    "master",
    "shared",
    "wandb",
];
/// Beside one of these a `token` is a piece of text, not a secret.
const TEXT_PARTS: [&str; 24] = [
    "max",
    "min",
    "num",
    "n",
    "count",
    "budget",
    "limit",
    "size",
    "len",
    "length",
    "per",
    "pad",
    "eos",
    "bos",
    "unk",
    "mask",
    "special",
    "type",
    "id",
    "ids",
    "stop",
    "image",
    "embedding",
    "classification",
];
/// A name that ends with one of these says where something is, not what it is.
const LOCATION_PARTS: [&str; 9] = ["file", "path", "dir", "directory", "folder", "name", "url", "uri", "env"];
/// A word without separators is secret if it ends with one of these: `PGPASSWORD`, `dbpasswd`, `accesstoken`.
const SECRET_ENDS: [&str; 6] = ["password", "passwd", "secret", "apikey", "passphrase", "authorization"];
/// Words before a credential in a header that are not part of it.
const SCHEMES: [&str; 5] = ["bearer", "basic", "digest", "negotiate", "token"];
/// What ends one field of a word.
const FIELD_ENDS: [char; 6] = [';', '&', '?', ',', '{', '}'];
/// How keys of known services begin, and the minimum length of the rest.
const PREFIXES: [(&str, usize); 36] = [
    ("hf_", 16),
    ("api_org_", 16),
    ("sk-", 16),
    ("sk_live_", 8),
    ("sk_test_", 8),
    ("rk_live_", 8),
    ("pk_live_", 8),
    ("ghp_", 16),
    ("gho_", 16),
    ("ghu_", 16),
    ("ghs_", 16),
    ("ghr_", 16),
    ("github_pat_", 16),
    ("glpat-", 12),
    ("gldt-", 12),
    ("xoxb-", 8),
    ("xoxp-", 8),
    ("xoxa-", 8),
    ("xoxs-", 8),
    ("xapp-", 8),
    ("AKIA", 16),
    ("ASIA", 16),
    ("AIza", 30),
    ("ya29.", 16),
    ("npm_", 20),
    ("pypi-", 16),
    ("dop_v1_", 16),
    ("SG.", 16),
    ("nvapi-", 16),
    ("gsk_", 16),
    ("r8_", 16),
    ("hvs.", 16),
    ("dckr_pat_", 12),
    ("tskey-", 12),
    ("xai-", 16),
    ("AGE-SECRET-KEY-", 8),
];
/// Options that carry a secret in one program only: with the value attached, or in the next word.
const PROGRAM_OPTIONS: [(&str, &str); 14] = [
    ("mysql", "-p"),
    ("mysqldump", "-p"),
    ("mysqladmin", "-p"),
    ("mariadb", "-p"),
    ("sshpass", "-p"),
    ("redis-cli", "-a"),
    ("ldapsearch", "-w"),
    ("mosquitto_pub", "-P"),
    ("mongo", "-p"),
    ("mongosh", "-p"),
    ("mongodump", "-p"),
    ("mongorestore", "-p"),
    ("mongoimport", "-p"),
    ("mongoexport", "-p"),
];
/// Programs in which the option is a secret only after `login`; otherwise it is a port.
const LOGIN_PROGRAMS: [&str; 5] = ["docker", "podman", "nerdctl", "buildah", "skopeo"];
/// The largest pid.
const PID_MAX: u32 = 1 << 22;
/// Characters of a key that are examined.
const KEY_EXAMINED: usize = 64;
/// Minimum length of a run of letters and digits that counts as random: shorter ones occur in file names.
const RANDOM_MIN: usize = 20;
/// The same for one case of letters and digits, as in hexadecimal.
const RANDOM_ONE_CASE_MIN: usize = 32;

/// The arguments with every secret in them replaced.
pub(super) fn redact(arguments: &[String]) -> Vec<String> {
    let mut reader = Redactor { option: None, logs_in: false, next: ExpectedWord::Plain, is_script: false };
    arguments.iter().map(|argument| reader.redact_argument(argument)).collect()
}

/// What the words so far say about the next one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ExpectedWord {
    Plain,
    /// All of the next argument, with the spaces in it.
    SecretArgument,
    /// The next word of this argument, up to its closing quote.
    SecretWord,
    /// A secret if an `=` comes before it.
    SecretIfGiven,
    /// A scheme and a secret, up to the closing quote if the header's name was behind one.
    Header(Option<char>),
    /// A user's name and, after a colon, a secret.
    UserAndSecret,
    /// The value of `-p`: in many programs a password, in many others a port, a process or a directory.
    PasswordOrPort,
    /// The rest of a secret, up to the character that closes it.
    Until(char),
}

struct Redactor {
    /// The option that carries a secret in the last program named: `sudo`, `timeout 5` and the like may precede it.
    option: Option<&'static str>,
    /// True if that program has one only for a login.
    logs_in: bool,
    next: ExpectedWord,
    /// The argument is a command line itself: the one before was a shell's `-c`.
    is_script: bool,
}

impl Redactor {
    fn redact_argument(&mut self, argument: &str) -> String {
        let is_script = std::mem::replace(&mut self.is_script, is_shells_c(argument));
        match self.next {
            ExpectedWord::SecretArgument if !looks_like_option(argument) => {
                self.next = ExpectedWord::Plain;
                return REDACTED.to_owned();
            }
            ExpectedWord::PasswordOrPort
                if !is_script && !looks_like_option(argument) && !is_port_or_path(argument) =>
            {
                self.next = ExpectedWord::Plain;
                return REDACTED.to_owned();
            }
            ExpectedWord::SecretArgument => self.next = ExpectedWord::Plain,
            _ => {}
        }
        // The value of a whole argument ends where the argument does, whatever it contains.
        if let Some((name, value)) = argument.split_once('=')
            && !is_script
            && is_name(name)
            && !value.is_empty()
            && is_secret(name)
        {
            self.next = ExpectedWord::Plain;
            return format!("{name}={REDACTED}");
        }
        if let Some(redacted) =
            self.redact_program_option(argument, ExpectedWord::SecretArgument).filter(|_| !is_script)
        {
            return redacted;
        }
        if looks_like_option(argument) && is_name(argument) && is_secret(argument) {
            self.next = ExpectedWord::SecretArgument;
            return argument.to_owned();
        }
        self.redact_words(argument)
    }

    /// `mysql -psecret`, `sshpass -p secret`.
    fn redact_program_option(&mut self, text: &str, next: ExpectedWord) -> Option<String> {
        let option = self.option?;
        let value = text.strip_prefix(option)?;
        let Some(first) = value.chars().next() else {
            // MySQL then prompts for it, and the next word is the name of a database: hidden as well.
            self.next = next;
            return Some(text.to_owned());
        };
        let is_open = is_quotation_mark(first) && value[1..].find(first).is_none();
        self.next =
            if is_open && next == ExpectedWord::SecretWord { ExpectedWord::Until(first) } else { ExpectedWord::Plain };
        // The closing quote of an outer quotation stays.
        let closes: String =
            value.chars().next_back().filter(|last| is_quotation_mark(*last) && !is_open).into_iter().collect();
        Some(format!("{option}{REDACTED}{closes}"))
    }

    /// Programs are named anywhere: behind others that start them, and in scripts.
    fn note_program(&mut self, word: &str) {
        let ends = |c: char| is_quote_or_bracket(c) || matches!(c, ';' | '&' | '|' | '$' | '{' | '=');
        let named = word.trim_end_matches(is_quote_or_bracket).rsplit(ends).next().unwrap_or_default();
        let named = named.rsplit('/').next().unwrap_or_default();
        if let Some((_, option)) = PROGRAM_OPTIONS.iter().find(|(program, _)| *program == named) {
            (self.option, self.logs_in) = (Some(*option), false);
        } else if LOGIN_PROGRAMS.contains(&named) {
            self.logs_in = true;
        } else if named == "login" && self.logs_in {
            self.option = Some("-p");
        }
    }

    fn redact_words(&mut self, argument: &str) -> String {
        let mut out = String::with_capacity(argument.len());
        let mut rest = argument;
        loop {
            let space = rest.len() - rest.trim_start().len();
            out.push_str(&rest[..space]);
            rest = &rest[space..];
            let word = &rest[..rest.find(char::is_whitespace).unwrap_or(rest.len())];
            if word.is_empty() {
                return out;
            }
            let taken = match std::mem::replace(&mut self.next, ExpectedWord::Plain) {
                ExpectedWord::SecretWord if !looks_like_option(word) => push_redacted(&mut out, rest, word.len()),
                ExpectedWord::PasswordOrPort
                    if !looks_like_option(word) && !is_port_or_path(word.trim_matches(is_quote_or_bracket)) =>
                {
                    push_redacted(&mut out, rest, word.len())
                }
                ExpectedWord::Until(mark) => {
                    out.truncate(out.trim_end().len());
                    out.push(mark);
                    rest.find(mark).map_or(rest.len(), |at| at + 1)
                }
                ExpectedWord::Header(quote) => push_redacted_header(&mut out, rest, quote),
                ExpectedWord::SecretIfGiven if matches!(word, "=" | ":" | ":=" | "=>") => {
                    self.next = ExpectedWord::SecretWord;
                    out.push_str(word);
                    word.len()
                }
                ExpectedWord::UserAndSecret if word.contains([':', '%']) && !word.contains("://") => {
                    out.push_str(&user_only(word));
                    word.len()
                }
                _ => {
                    out.push_str(&self.redact_word(word));
                    word.len()
                }
            };
            rest = &rest[taken..];
        }
    }

    fn redact_word(&mut self, word: &str) -> String {
        if let Some(redacted) = self.redact_program_option(word, ExpectedWord::SecretWord) {
            return redacted;
        }
        self.note_program(word);
        let bare = word.trim_matches(is_quote_or_bracket);
        if is_name(bare) {
            self.next = match bare {
                _ if bare.eq_ignore_ascii_case("bearer") => ExpectedWord::SecretWord,
                "-u" | "-U" | "--user" | "--proxy-user" => ExpectedWord::UserAndSecret,
                "-p" => ExpectedWord::PasswordOrPort,
                _ if looks_like_option(bare) && is_secret(bare) => ExpectedWord::SecretWord,
                _ if is_secret(bare) => ExpectedWord::SecretIfGiven,
                _ => ExpectedWord::Plain,
            };
        }
        let word = without_userinfo(word);
        let mut out = String::with_capacity(word.len());
        let mut is_after_secret = false;
        for field in word.split_inclusive(FIELD_ENDS) {
            // A comma in a secret does not end it; another name does.
            if is_after_secret && !field.contains(['=', ':']) {
                out.push_str(&field[field.trim_end_matches(FIELD_ENDS).len()..]);
                continue;
            }
            let shown = self.redact_field(field);
            is_after_secret = shown.contains(REDACTED);
            out.push_str(&shown);
        }
        out
    }

    /// `name=value`, `"name":"value"`, or neither.
    fn redact_field(&mut self, field: &str) -> String {
        let end = field.trim_end_matches(FIELD_ENDS);
        let after = &field[end.len()..];
        let Some((at, name)) = secret_name(end) else {
            return match end.split_once('=').filter(|(name, _)| is_name(name)) {
                Some((name, value)) => format!("{}={}{after}", redact_patterns(name), redact_patterns(value)),
                None => format!("{}{after}", redact_patterns(end)),
            };
        };
        let value = end[at + 1..].trim_start_matches(['=', '>']);
        if !value.is_empty() {
            let (opens, closes) = (value.chars().next().filter(|c| is_quotation_mark(*c)), value.chars().next_back());
            if let Some(mark) = opens.filter(|mark| value[1..].find(*mark).is_none()) {
                self.next = ExpectedWord::Until(mark);
            }
            let closes: String = closes.filter(|c| is_quotation_mark(*c) && value.len() > 1).into_iter().collect();
            return format!("{}{REDACTED}{closes}{after}", &end[..=at]);
        }
        // `Authorization: Bearer …`, `"password": "…"`: it comes with the next word.
        let is_header = parts_of(name).iter().any(|part| part.ends_with("authorization"));
        let quote = name.chars().next().filter(|first| is_quotation_mark(*first) && !name[1..].ends_with(*first));
        self.next = if is_header { ExpectedWord::Header(quote) } else { ExpectedWord::SecretWord };
        field.to_owned()
    }
}

/// Writes the placeholder for the secret that `rest` begins with, and returns the secret's length.
fn push_redacted(out: &mut String, rest: &str, word: usize) -> usize {
    let mark = rest.chars().next().filter(|first| is_quotation_mark(*first));
    let Some(mark) = mark else {
        out.push_str(REDACTED);
        // The closing quote of an outer quotation stays: people read the line.
        out.extend(rest[..word].chars().next_back().filter(|last| is_quotation_mark(*last)));
        return word;
    };
    out.extend([mark]);
    out.push_str(REDACTED);
    out.extend([mark]);
    rest[1..].find(mark).map_or(rest.len(), |at| at + 2)
}

/// The same for a whole header; its scheme may be shown.
fn push_redacted_header(out: &mut String, rest: &str, quote: Option<char>) -> usize {
    let opens = rest.chars().next().filter(|first| is_quotation_mark(*first));
    let begin = opens.map_or(0, char::len_utf8);
    let end = opens.or(quote).and_then(|mark| rest[begin..].find(mark)).map_or(rest.len(), |at| begin + at);
    let scheme = rest[begin..end].split_whitespace().next().unwrap_or_default();
    out.extend(opens);
    if SCHEMES.iter().any(|known| scheme.eq_ignore_ascii_case(known)) {
        out.push_str(scheme);
        out.push(' ');
    }
    out.push_str(REDACTED);
    end
}

/// The first name in a field that says secret, and the position of its `=` or `:`.
fn secret_name(field: &str) -> Option<(usize, &str)> {
    let mut begin = 0;
    for (at, separator) in field.match_indices(['=', ':']) {
        let name = &field[begin..at];
        // `/run/secrets:/run/secrets` is two places, and `app.auth:main` a module of Python.
        let is = match separator {
            "=" => is_secret(name.rsplit('/').next().unwrap_or(name)),
            _ => !name.contains('/') && !name.ends_with("auth") && is_secret(name),
        };
        if is {
            return Some((at, name));
        }
        begin = at + 1;
    }
    None
}

/// Ports, mappings of ports (`127.0.0.1:8080:80/tcp`), ids of processes, and paths that show where they begin.
fn is_port_or_path(word: &str) -> bool {
    let numbers = word.strip_suffix("/tcp").or_else(|| word.strip_suffix("/udp")).unwrap_or(word);
    let is_number = |part: &str| part.parse::<u32>().is_ok_and(|number| number <= PID_MAX);
    let is_path = ["/", "./", "../", "~/"].iter().any(|begin| word.starts_with(begin));
    is_path || numbers.split([':', '.', ',', '-']).all(is_number)
}

/// `-c`, `-lc`: what comes next is a script.
fn is_shells_c(argument: &str) -> bool {
    let letters = argument.strip_prefix('-').and_then(|rest| rest.strip_suffix('c'));
    letters.is_some_and(|letters| letters.len() <= 3 && letters.bytes().all(|byte| byte.is_ascii_lowercase()))
}

fn looks_like_option(word: &str) -> bool {
    word.strip_prefix('-').is_some_and(|rest| rest.starts_with(|c: char| c == '-' || c.is_ascii_alphabetic()))
}

/// Could this be the name of an option or of a variable? Long texts and addresses are none.
fn is_name(text: &str) -> bool {
    text.len() <= 64 && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
}

const fn is_quotation_mark(c: char) -> bool {
    matches!(c, '\'' | '"')
}

const fn is_quote_or_bracket(c: char) -> bool {
    matches!(c, '\'' | '"' | '`' | '(' | ')' | '[' | ']')
}

/// The lower-case words of a name: `hfApiToken`, `HF_API_TOKEN` and `--hf.api-token` are the same three.
fn parts_of(name: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut before = ' ';
    for c in name.chars() {
        let begins = !c.is_alphanumeric() || (c.is_uppercase() && before.is_lowercase());
        if begins && parts.last().is_some_and(|part| !part.is_empty()) {
            parts.push(String::new());
        }
        if c.is_alphanumeric()
            && let Some(part) = parts.last_mut()
        {
            part.extend(c.to_lowercase());
        }
        before = c;
    }
    parts.retain(|part| !part.is_empty());
    parts
}

/// True if a name says that its value is secret.
fn is_secret(name: &str) -> bool {
    let parts = parts_of(name);
    let has = |list: &[&str], part: &String| list.contains(&part.as_str());
    let Some(last) = parts.last().filter(|last| !has(&LOCATION_PARTS, last)) else { return false };
    let is_text = parts.iter().any(|part| has(&TEXT_PARTS, part));
    // `OPENAI_KEY`: a variable of that name is hardly ever about sorting.
    let is_variable = last == "key" && parts.len() > 1 && !name.contains(|c: char| c.is_ascii_lowercase());
    last == "auth"
        || is_variable
        || parts.iter().enumerate().any(|(at, part)| match part.as_str() {
            "key" | "keys" => at > 0 && has(&BEFORE_KEY, &parts[at - 1]),
            text if text.ends_with("token") => !is_text,
            // A lease's own variable: `proof` alone is an ordinary word.
            "proof" => at > 0 && parts[at - 1] == "sublet",
            text => has(&SECRET_PARTS, part) || SECRET_ENDS.iter().any(|end| text.ends_with(end)),
        })
}

/// `user:secret` without the secret. Numbers are a user and a group, and stay.
fn user_only(word: &str) -> String {
    match word.split_once([':', '%']) {
        Some((user, secret)) if !is_number(user) || !is_number(secret) => format!("{user}:{REDACTED}"),
        _ => word.to_owned(),
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// `scheme://user:secret@host/…` without the part before the host.
fn without_userinfo(word: &str) -> String {
    let Some(at) = word.find("://") else { return word.to_owned() };
    let (scheme, rest) = word.split_at(at + 3);
    let authority = &rest[..rest.find(['/', '?', '#']).unwrap_or(rest.len())];
    // A secret may contain a slash that should have been escaped: then the port is no number.
    let odd_port = authority.rsplit_once(':').is_some_and(|(host, port)| !host.contains('[') && !is_number(port));
    // Or an `@`: the last one counts, up to a question mark, which ends the address.
    let end = rest[..rest.find(['?', '#']).unwrap_or(rest.len())].rfind('@');
    match end.filter(|_| authority.contains('@') || odd_port) {
        Some(end) => format!("{scheme}{REDACTED}{}", &rest[end..]),
        None => word.to_owned(),
    }
}

/// Removes what looks like a key, anywhere in the word.
fn redact_patterns(word: &str) -> String {
    // File names stay readable, even random ones.
    let is_path = word.trim_start_matches(is_quote_or_bracket).starts_with(['/', '.', '~']) || word.contains("://");
    let of_key = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '+' | '.' | '~');
    if !is_path && looks_like_base64(word) {
        return REDACTED.to_owned();
    }
    let mut out = String::with_capacity(word.len());
    let mut rest = word;
    while !rest.is_empty() {
        let (run, after) = rest.split_at(rest.find(|c| !of_key(c)).unwrap_or(rest.len()));
        out.push_str(if is_key(run) || (!is_path && looks_random(run)) { REDACTED } else { run });
        let (between, next) = after.split_at(after.find(of_key).unwrap_or(after.len()));
        out.push_str(between);
        rest = next;
    }
    out
}

/// A key of a known service, or three parts of base64 as a JSON web token has them.
fn is_key(run: &str) -> bool {
    let known = PREFIXES.iter().any(|(prefix, least)| {
        run.match_indices(prefix).any(|(at, _)| {
            let fresh = !run[..at].ends_with(|c: char| c.is_ascii_alphanumeric());
            // Enough to decide by, and a bound for words made of such prefixes.
            let body = &run[at + prefix.len()..];
            let body = body.get(..KEY_EXAMINED).unwrap_or(body);
            // `hf_models_of_mine` is a name: keys with a prefix that ends in an underscore have none later.
            let of_body = |c: char| c.is_ascii_alphanumeric() || (!prefix.ends_with('_') && matches!(c, '-' | '_'));
            let body = &body[..body.find(|c| !of_body(c)).unwrap_or(body.len())];
            fresh && body.len() >= *least && body.bytes().any(|byte| byte.is_ascii_digit() || byte.is_ascii_uppercase())
        })
    });
    known || (run.contains("eyJ") && run.matches('.').count() >= 2 && run.len() >= 32)
}

/// True for a mix of letters and digits that no name has; names have dashes and dots between their parts.
fn looks_random(run: &str) -> bool {
    run.split(|c: char| !c.is_ascii_alphanumeric()).any(is_mixed)
}

/// The same for base64, in which slashes have no meaning.
fn looks_like_base64(word: &str) -> bool {
    let bare = word.trim_matches(is_quote_or_bracket);
    let of_base64 = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '=');
    bare.contains(['+', '/', '=']) && bare.chars().all(of_base64) && is_mixed(&bare.replace(['+', '/', '='], ""))
}

fn is_mixed(piece: &str) -> bool {
    let count = |is: fn(&u8) -> bool| piece.bytes().filter(is).count();
    let (lower, upper) = (count(u8::is_ascii_lowercase), count(u8::is_ascii_uppercase));
    let digits = piece.len() - lower - upper;
    let kind = |byte: u8| (byte.is_ascii_lowercase(), byte.is_ascii_uppercase());
    let changes = piece.as_bytes().windows(2).filter(|pair| kind(pair[0]) != kind(pair[1])).count();
    // In random text six in ten neighbours differ in kind; in a name three.
    let two_cases = lower > 0 && upper > 0 && digits > 0 && piece.len() >= RANDOM_MIN && changes * 5 >= piece.len() * 2;
    // With one case it is four in ten.
    let one_case =
        lower + upper >= 6 && digits >= 6 && piece.len() >= RANDOM_ONE_CASE_MIN && changes * 4 >= piece.len();
    two_cases || one_case
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Arguments with `␠` for spaces inside one.
    fn check(line: &str, shown: &str) {
        let arguments: Vec<String> = line.split(' ').map(|argument| argument.replace('␠', " ")).collect();
        let redacted: Vec<String> = redact(&arguments).iter().map(|argument| argument.replace(' ', "␠")).collect();
        assert_eq!(redacted.join(" "), shown);
    }

    fn check_unchanged(line: &str) {
        check(line, line);
    }

    #[test]
    fn secrets_in_options_are_removed() {
        check("app --password hunter2 x.py", "app --password *** x.py");
        check("app --password=hunter2 x.py", "app --password=*** x.py");
        check("app -token abc --api-key=k --apiKey k2", "app -token *** --api-key=*** --apiKey ***");
        check(
            "app --hf_token abc --client-secret=a=b --db.passwd c",
            "app --hf_token *** --client-secret=*** --db.passwd ***",
        );
        check("app --password two␠words --next x", "app --password *** --next x");
        check("docker run -e SUBLET_PROOF=7 -e SUBLET_LEASE=L7", "docker run -e SUBLET_PROOF=*** -e SUBLET_LEASE=L7");
        check("score --proof 7 --waterproof=8 SUBLET_FENCE=9", "score --proof 7 --waterproof=8 SUBLET_FENCE=9");
        check("app --password=two␠words", "app --password=***");
        check("app --auth ann:x --no-password-check y", "app --auth *** --no-password-check ***");
        check("app --with-auth --model m.gguf", "app --with-auth --model m.gguf");
        check("app --access-key-id AK --secret-access-key SK", "app --access-key-id *** --secret-access-key ***");
        check("curl -u ann:x https://h/", "curl -u ann:*** https://h/");
        check("curl --user=ann --proxy-user bob:x␠y h", "curl --user=ann --proxy-user bob:***␠y h");
        check("mysql -uroot -phunter2 db", "mysql -uroot -p*** db");
        check("/usr/bin/sshpass -p x ssh h", "/usr/bin/sshpass -p *** ssh h");
        check("redis-cli -a x ping", "redis-cli -a *** ping");
        check("timeout 5 sshpass -p x ssh h", "timeout 5 sshpass -p *** ssh h");
        check("sudo -u db /usr/bin/mysql -phunter2 db", "sudo -u db /usr/bin/mysql -p*** db");
        check("docker login -u ann -p x r.io", "docker login -u ann -p *** r.io");
        check("mongo -u ann -p x db", "mongo -u ann -p *** db");
        check("mongodump -px db", "mongodump -p*** db");
        check_unchanged("docker run -p 8080:80 img");
        check_unchanged("llama-server -p 8080 -a name");
        check("tool -p hunter2 -n 3", "tool -p *** -n 3");
        check("tool -p two␠words x", "tool -p *** x");
        check("sh -c tool␠-p␠hunter2␠x", "sh -c tool␠-p␠***␠x");
        check("sh -c \"tool␠-p␠'two␠words'␠x\"", "sh -c \"tool␠-p␠'***'␠x\"");
        check("tool -p 99999999", "tool -p ***");
        check_unchanged("docker run -p 127.0.0.1:8080:80/tcp img");
        check_unchanged("mkdir -p /data/x ./y");
        check_unchanged("mkdir -p ./y");
        check_unchanged("tool -p --verbose");
        check_unchanged("ps -p 4194303");
        check("openssl -passin pass:x -in k.pem", "openssl -passin pass:*** -in k.pem");
    }

    #[test]
    fn secrets_in_variables_headers_and_fields_are_removed() {
        check("env HF_TOKEN=abc PGPASSWORD=x␠y python train.py", "env HF_TOKEN=*** PGPASSWORD=*** python train.py");
        check("docker run -e API_KEY=k --env=HF_TOKEN=abc img", "docker run -e API_KEY=*** --env=HF_TOKEN=*** img");
        check("curl -H Authorization:␠Bearer␠abc h", "curl -H Authorization:␠Bearer␠*** h");
        check("curl -H Authorization:␠Digest␠a=\"b\",␠c h", "curl -H Authorization:␠Digest␠*** h");
        check("curl -H Authorization:abc -H X-Api-Key:␠k h", "curl -H Authorization:*** -H X-Api-Key:␠*** h");
        check("psql host=h;user=ann;password=x;port=5", "psql host=h;user=ann;password=***;port=5");
        check("get https://h/p?a=1&token=abc&b=2", "get https://h/p?a=1&token=***&b=2");
        check("app {\"user\":\"ann\",\"password\":\"x\"}", "app {\"user\":\"ann\",\"password\":***\"}");
        check("app password=a,b,c password=a,b;x=1", "app password=*** password=***");
        check("app OPENAI_KEY=k --sort-key=k", "app OPENAI_KEY=*** --sort-key=k");
        check("app a=1,password=b,c;d,x=2", "app a=1,password=***,;,x=2");
        check("app {\"hfToken\":␠\"a␠b\",␠\"n\":␠1}", "app {\"hfToken\":␠\"***\",␠\"n\":␠1}");
    }

    #[test]
    fn secrets_in_nested_command_lines_are_removed() {
        check("sh -c HF_TOKEN=abc␠python␠train.py", "sh -c HF_TOKEN=***␠python␠train.py");
        check("bash -lc HF_TOKEN='a␠b␠c'␠python␠train.py", "bash -lc HF_TOKEN=***'␠python␠train.py");
        check("sh -c app␠--token=\"a␠b", "sh -c app␠--token=***\"");
        check("sh -c mysql␠-phunter2␠db", "sh -c mysql␠-p***␠db");
        check("sh -c cd␠/w;mysql␠-p'two␠words'␠db", "sh -c cd␠/w;mysql␠-p***'␠db");
        check("sh -c 'sshpass␠-p␠x␠ssh␠h'", "sh -c 'sshpass␠-p␠***␠ssh␠h'");
        check("sh -c x=$(mysql␠-px)", "sh -c x=$(mysql␠-p***");
        check("sh -c exec␠docker␠login␠-p␠x", "sh -c exec␠docker␠login␠-p␠***");
        check("sh -c cd␠/w;␠HF_TOKEN=abc␠python␠t.py␠--lr␠1", "sh -c cd␠/w;␠HF_TOKEN=***␠python␠t.py␠--lr␠1");
        check("sh -c app␠--password␠'two␠words'␠--n␠1", "sh -c app␠--password␠'***'␠--n␠1");
        check(
            "sh -c curl␠-H␠'Authorization:␠Bearer␠abc'␠https://h",
            "sh -c curl␠-H␠'Authorization:␠Bearer␠***'␠https://h",
        );
        check("python -c login(token='hf_x')", "python -c login(token=***");
        check("python -c password␠=␠'x';␠run()", "python -c password␠=␠'***';␠run()");
        check("python -c h={'Authorization':␠'Bearer␠x'};␠go()", "python -c h={'Authorization':␠'Bearer␠***'};␠go()");
        check("worker:␠db␠password=x␠idle", "worker:␠db␠password=***␠idle");
    }

    #[test]
    fn credentials_in_urls_are_removed() {
        check("git clone https://ann:x@h/r.git", "git clone https://***@h/r.git");
        check("git clone https://ghp_x@h/r.git", "git clone https://***@h/r.git");
        check("app --db=postgres://u:p/w@h:5/d", "app --db=postgres://***@h:5/d");
        check("app redis://:p@s@h/0", "app redis://***@h/0");
        check_unchanged("app http://h:8000/v1 http://[::1]:8000/x https://h/@scope/p git@h:r.git");
    }

    #[test]
    fn known_and_random_keys_are_removed() {
        for key in [
            "hf_AbCdEfGhIjKlMnOpQrStUvWxYz12345678",
            "sk-proj-abc_def-0123456789abcdef",
            "ghp_0123456789abcdefABCDEF0123456789abcd",
            "github_pat_11ABCDEFG0abcdefghijkl_mnop",
            "AKIAIOSFODNN7EXAMPLE",
            "kQ7/x2Vb9LmN+4tRz8WcP1sYhJ6dF3gA0eUiKoTq",
            "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N",
            "3f9a1c07e5b84d26a9f01b7c3d5e8842f6a0c19b",
            "x7Gk2mQ9pLr4Tz8WvN3bY6cD",
        ] {
            check(&format!("login {key} now"), "login *** now");
            check(&format!("login '{key}'"), if key.contains('/') { "login ***" } else { "login '***'" });
            check(&format!("app --with={key}"), "app --with=***");
        }
        check("cp /data/hf_AbCdEfGhIjKlMnOpQrStUvWxYz12345678 /x", "cp /data/*** /x");
    }

    #[test]
    fn programs_options_and_file_names_stay_readable() {
        check_unchanged(
            "python -u train.py --max-tokens 512 --tokenizer t --pad_token_id=0 --max_new_tokens 9 --lr 3e-4",
        );
        check_unchanged("python -m vllm.entrypoints.openai.api_server --model meta-llama/Meta-Llama-3.1-70B-Instruct");
        check_unchanged(
            "llama-server -m /m/DeepSeek-R1-Distill-Qwen-32B-Q4_K_M.gguf --port 8080 -ngl 99 --api-key-file /k",
        );
        check_unchanged("app --password-file /run/secrets/db --token-path ~/.t -v /run/secrets:/run/secrets:ro");
        check_unchanged("python /root/.cache/hub/models--a--b/snapshots/3f9a1c07e5b84d26a9f01b7c3d5e8842f6a0c19b/x.py");
        check_unchanged(
            "app --device GPU-8f6e2c1a-1234-5678-9abc-def012345678 --key-frames 3 --sort-key name --passes 2",
        );
        check_unchanged("uvicorn pkg.auth:app --workers 4");
        check_unchanged("torchrun --nproc_per_node=8 --rdzv_endpoint=10.0.0.1:29500 train.py --user 1000:1000");
        check_unchanged(
            "python Llama3InstructFineTunedCheckpoint2024.safetensors TheBloke/Mistral-7B-Instruct-v0.2-GPTQ",
        );
        check_unchanged("app Qwen2.5-Coder-7B-Instruct-GPTQ-Int4 hf_models_of_mine_v2_final sk-learn");
        check_unchanged("app -- - -1 = : '' \" , ;");
        assert!(redact(&[]).is_empty());
    }

    #[test]
    fn any_text_is_redacted_without_a_panic_and_grows_little() {
        let pieces =
            ["--password", "=", ":", "'", "\"", " ", "é", "://", "@", "{", "Bearer", "Authorization:", "token", "-u"];
        // Every string of four pieces: cuts, quotes without an end, names without a value.
        let begun = std::time::Instant::now();
        for unit in ["sk-", "a=", "a:", "'", "://", "token=", "a ", "{", "eyJ."] {
            redact(&[unit.repeat(65_536 / unit.len())]);
        }
        assert!(begun.elapsed().as_secs() < 10, "{:?} for words of 64 KiB", begun.elapsed());
        for number in 0..pieces.len().pow(4) {
            let part = |power: u32| pieces[number / pieces.len().pow(power) % pieces.len()];
            let text = [part(0), part(1), part(2), part(3)].concat();
            let redacted = redact(&[text.clone(), text.clone()]);
            assert!(redacted.iter().all(|word| word.len() <= text.len() + 4 * REDACTED.len()), "{text}: {redacted:?}");
        }
    }
}
