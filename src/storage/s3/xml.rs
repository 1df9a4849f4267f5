//! The little XML that S3 and STS answer, text between two tags, and how values stand in what they are asked.

/// Bytes of the longest name of a letter, `;` included: `&#x10FFFF;`.
const ENTITY_BYTES_MAX: usize = 9;

/// Text of the first `tag`, unescaped.
pub(super) fn first(xml: &str, tag: &str) -> Option<String> {
    blocks(xml, tag).next().map(unescape)
}

/// What stands between each `<tag>` and `</tag>`, as it is.
pub(super) fn blocks<'a>(xml: &'a str, tag: &str) -> impl Iterator<Item = &'a str> {
    let (open, close) = (format!("<{tag}>"), format!("</{tag}>"));
    let mut rest = xml;
    std::iter::from_fn(move || {
        let (_, behind) = rest.split_once(&open)?;
        let (inside, behind) = behind.split_once(&close)?;
        rest = behind;
        Some(inside)
    })
}

/// Text as it was before XML.
fn unescape(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once('&') {
        plain.push_str(before);
        // None is longer, and looking for its end anywhere behind each `&` would take the square of the text.
        let end = behind.bytes().take(ENTITY_BYTES_MAX).position(|byte| byte == b';');
        let Some((name, behind)) = end.and_then(|end| Some((behind.get(..end)?, behind.get(end + 1..)?))) else {
            plain.push('&');
            rest = behind;
            continue;
        };
        let number = |digits: &str, radix| u32::from_str_radix(digits, radix).ok().and_then(char::from_u32);
        let letter = match name {
            "lt" => Some('<'),
            "gt" => Some('>'),
            "amp" => Some('&'),
            "quot" => Some('"'),
            "apos" => Some('\''),
            _ => match name.strip_prefix("#x") {
                Some(digits) => number(digits, 16),
                None => name.strip_prefix('#').and_then(|digits| number(digits, 10)),
            },
        };
        plain.extend(letter);
        rest = behind;
    }
    plain.push_str(rest);
    plain
}

/// Percent encoding of a value in a query or form.
pub(super) fn percent(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    text.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_between_tags_is_found_and_unescaped() {
        let xml = "<R><Upload><Key>a&amp;b&#x2F;c&lt;</Key></Upload><Upload><Key>d&#47;e</Key></Upload></R>";
        let keys: Vec<_> = blocks(xml, "Upload").map(|block| first(block, "Key").unwrap()).collect();
        assert_eq!(keys, ["a&b/c<", "d/e"]);
        assert_eq!(first(xml, "Code"), None);
        assert_eq!(first("<Code>cut", "Code"), None);
        assert_eq!(first("<a>x & y</a>", "a").unwrap(), "x & y");
    }
}
