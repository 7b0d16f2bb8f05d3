//! Requests of Redis's protocol.

use std::io::Write;

/// Appends a request to a buffer.
pub fn encode(request: &mut Vec<u8>, words: &[&[u8]]) {
    // Writing to a vector does not fail.
    let _ = write!(request, "*{}\r\n", words.len());
    for word in words {
        let _ = write!(request, "${}\r\n", word.len());
        request.extend_from_slice(word);
        request.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_request_has_its_lengths() {
        let mut request = Vec::new();
        super::encode(&mut request, &[b"SET", b"", b"\r\n"]);
        assert_eq!(request, b"*3\r\n$3\r\nSET\r\n$0\r\n\r\n$2\r\n\r\n\r\n");
    }
}
