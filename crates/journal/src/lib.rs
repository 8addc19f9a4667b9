//! Durable state: rows, log, audit chain, stored answers.
