//! Which requests need the GPU, and so bring a parked service back.
//!
//! ```text
//!   POST /api/generate    one method, one path
//!   POST /v1/*            `*`: any characters, `/` among them
//!   * /generate           any method
//! ```
//! The query does not count, and a path is compared as most servers read it: `//` is `/`, `%67` is `g`, `/a/../b` is `/b`.

use crate::table::plain;
use hyper::Method;
use std::fmt;
use std::str::FromStr;

/// What a request asks of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Work on the GPU: it brings a parked service back.
    Gpu,
    /// A change that needs no GPU.
    Change,
    /// Only the state of something: GET, HEAD and OPTIONS, which are safe to send again (RFC 9110, 9.2.1).
    Read,
}

/// The requests that bring a service back: those of any pattern, or all but GET, HEAD and OPTIONS if there is
/// no pattern.
#[derive(Clone, Debug, Default)]
pub struct WakeList(Vec<Pattern>);

impl WakeList {
    pub fn new(patterns: Vec<Pattern>) -> WakeList {
        WakeList(patterns)
    }

    /// What a request needs. `path` has no query.
    pub fn need(&self, method: &Method, path: &str) -> Need {
        let is_read = matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS);
        let wakes = if self.0.is_empty() { !is_read } else { self.matches(method, &normal(path)) };
        match (wakes, is_read) {
            (true, _) => Need::Gpu,
            (false, true) => Need::Read,
            (false, false) => Need::Change,
        }
    }

    fn matches(&self, method: &Method, path: &[u8]) -> bool {
        self.0.iter().any(|pattern| pattern.matches(method, path))
    }
}

/// A method and a path with `*` for any characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// `None` is any method.
    method: Option<Method>,
    path: String,
}

impl Pattern {
    fn matches(&self, method: &Method, path: &[u8]) -> bool {
        self.method.as_ref().is_none_or(|wanted| wanted == method) && glob(&self.path, path)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method.as_ref().map_or("*", Method::as_str), self.path)
    }
}

impl FromStr for Pattern {
    type Err = String;
    fn from_str(text: &str) -> Result<Pattern, String> {
        let wrong = |what: &str| {
            let hint = "write a method and a path, such as \"POST /v1/*\"";
            Err(format!("`{}` {what}\nhint: {hint}", plain(text)))
        };
        let Some((method, path)) = text.split_once(' ') else { return wrong("is no method and path") };
        if !path.starts_with('/') || path.contains([' ', '?', '#']) {
            return wrong("has no path that begins with `/` and has no query");
        }
        let is_word = !method.is_empty() && method.bytes().all(|byte| byte.is_ascii_uppercase());
        let method = match Method::from_str(method) {
            _ if method == "*" => None,
            Ok(method) if is_word => Some(method),
            _ => return wrong("has no method in capitals, or `*`, before its path"),
        };
        Ok(Pattern { method, path: path.to_owned() })
    }
}

/// A path with its escapes resolved, and without empty segments, `.` and `..`.
fn normal(path: &str) -> Vec<u8> {
    let resolved = resolved(path);
    let mut segments: Vec<&[u8]> = Vec::new();
    for segment in resolved.split(|byte| *byte == b'/') {
        match segment {
            b"" | b"." => {}
            b".." => drop(segments.pop()),
            segment => segments.push(segment),
        }
    }
    let ends_open = [&b"/"[..], b"/.", b"/.."].iter().any(|end| resolved.ends_with(end));
    let mut normal: Vec<u8> = segments.iter().flat_map(|segment| [b"/", *segment].concat()).collect();
    if normal.is_empty() || ends_open {
        normal.push(b'/');
    }
    normal
}

/// A path with its escapes resolved.
fn resolved(path: &str) -> Vec<u8> {
    let digit = |byte: Option<&u8>| byte.and_then(|byte| char::from(*byte).to_digit(16));
    let mut bytes = path.as_bytes();
    let mut resolved = Vec::with_capacity(bytes.len());
    while let Some((first, rest)) = bytes.split_first() {
        let escaped = digit(rest.first()).zip(digit(rest.get(1))).filter(|_| *first == b'%');
        let (byte, rest) = match escaped {
            Some((high, low)) => ((high * 16 + low) as u8, &rest[2..]),
            None => (*first, rest),
        };
        resolved.push(byte);
        bytes = rest;
    }
    resolved
}

fn glob(pattern: &str, text: &[u8]) -> bool {
    let mut parts = pattern.split('*').map(str::as_bytes);
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts.filter(|part| !part.is_empty()) {
        let Some(at) = rest.windows(part.len()).position(|window| window == part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wakes(patterns: &[&str], request: &str) -> bool {
        let list = WakeList::new(patterns.iter().map(|text| text.parse().unwrap()).collect());
        let (method, path) = request.split_once(' ').unwrap();
        list.need(&method.parse().unwrap(), path) == Need::Gpu
    }

    #[test]
    fn without_patterns_only_requests_that_may_change_something_wake() {
        for request in ["POST /x", "PUT /", "DELETE /a/b", "PATCH /x", "PURGE /x"] {
            assert!(wakes(&[], request), "{request}");
        }
        for request in ["GET /api/generate", "HEAD /", "OPTIONS /x"] {
            assert!(!wakes(&[], request), "{request}");
        }
    }

    #[test]
    fn what_brings_nothing_back_is_a_change_or_a_read() {
        let list = WakeList::new(vec!["POST /generate".parse().unwrap()]);
        let need = |method: Method, path: &str| list.need(&method, path);
        assert_eq!(need(Method::POST, "/generate"), Need::Gpu);
        assert_eq!(need(Method::POST, "/show"), Need::Change);
        assert_eq!(need(Method::GET, "/generate"), Need::Read);
    }

    #[test]
    fn a_pattern_is_a_method_and_a_path_in_which_a_star_is_anything() {
        let check = |pattern: &str, yes: &[&str], no: &[&str]| {
            for request in yes {
                assert!(wakes(&["PUT /other", pattern], request), "{pattern}: {request}");
            }
            for request in no {
                assert!(!wakes(&["PUT /other", pattern], request), "{pattern}: {request}");
            }
        };
        check(
            "POST /api/generate",
            &[
                "POST /api/generate",
                "POST //api/generate",
                "POST /api/%67en%65rate",
                "POST /./api/generate",
                "POST /x/../api/%2e/generate",
                "POST /../api/x/%2E%2e/generate",
                "PUT /other",
            ],
            &["GET /api/generate", "POST /api/generate/x", "POST /api", "POST /api/Generate", "POST /api/%6", "PUT /"],
        );
        check(
            "POST /v1/*",
            &["POST /v1/", "POST /v1/chat/completions", "POST /v1/x/.."],
            &["POST /v1", "POST /v2/x", "GET /v1/x", "POST /v1/../x"],
        );
        check("* /a*b*c", &["GET /abc", "POST /a-b-b-c", "GET /axbxcbc"], &["GET /ac", "GET /acb", "GET /abcd"]);
        check("* /*", &["GET /", "DELETE /x/y"], &[]);
        check("POST /a*a", &["POST /aa", "POST /aba"], &["POST /a"]);
    }

    #[test]
    fn what_is_no_pattern_is_refused_with_an_example() {
        for text in ["", "POST", "/api", "POST api", "post /api", "POST  /api", "POST /a?b=c", "GET,POST /a", " /a"] {
            let why = text.parse::<Pattern>().unwrap_err();
            assert!(why.contains("hint: write a method and a path"), "{text}: {why}");
        }
        for text in ["POST /v1/*", "* /generate"] {
            assert_eq!(text.parse::<Pattern>().map(|pattern| pattern.to_string()), Ok(text.to_owned()));
        }
    }
}
