//! Strings, slices and vectors of C++, Rust and Go: where their elements are, and how many there are.
//!
//! In: DWARF and a type. Out: where a value of it holds the address of its elements and their number ([`Counted`]); `None`
//! of any other type, and of one whose parts have other names. Invariant: IMG-3. Does not: read memory.
//!
//! ```text
//!   language  type                               address                           number, or address of the end
//!   Go        string, []T                        the first word                    the second word
//!   C++       std::string        (libstdc++)     _M_dataplus._M_p                  _M_string_length
//!             std::string_view   (libstdc++)     _M_str                            _M_len
//!             std::string_view   (libc++)        __data_, __data                   __size_, __size
//!             std::vector<T>     (libstdc++)     _M_impl._M_start                  _M_impl._M_finish
//!             std::vector<T>     (libc++)        __begin_                          __end_
//!             std::span<T>       (libstdc++)     _M_ptr                            _M_extent._M_extent_value
//!   Rust      &str, &[T], Box<str>               data_ptr                          length
//!             Vec<T>                             buf, down to the pointer in it    len
//!             String                             those of its `vec`
//! ```
//! A `std::string` of libc++ is left out: a bit of it says where its bytes are.

use crate::debuginfo::DebugInfo;
use crate::entries::{At, Entry};
use crate::prototype::{Layout, MOST_BYTES, ValueType};

/// How Rust calls slices; behind a name more may follow, as an allocator.
const SLICES: [&str; 6] = ["&str", "&mut str", "&[", "&mut [", "Box<str", "alloc::boxed::Box<str"];
/// Names of the parts of what Rust's vectors keep their elements in, by any version: each leads on to the next.
const BUFFER: [&str; 3] = ["inner", "ptr", "pointer"];
/// How many of them lead to the pointer at most.
const DEEPEST: usize = 6;
/// Bytes of an address, and of a number.
const WORD: u64 = 8;
/// Members that are looked at for one name, with those of base classes; more are forged.
const MOST_MEMBERS: u32 = 10_000;

/// What the elements are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Elements {
    /// Bytes of a text.
    Text,
    /// Values, so many bytes from each other.
    Values {
        /// Of what one consists.
        of: Layout,
        /// Bytes of one.
        stride: u64,
        /// Whether the second word is the address behind the last one, and not their number.
        by_end: bool,
    },
}

/// Where a value holds the address of its elements, and their number: two words, at these distances from its beginning.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Counted {
    pub(crate) address: u64,
    pub(crate) number: u64,
    pub(crate) of: Elements,
}

/// The same, before it is known what the elements are.
struct Words<'u> {
    address: u64,
    number: u64,
    /// Type of one.
    element: Option<At<'u>>,
    is_text: bool,
    by_end: bool,
}

impl DebugInfo {
    /// Where a value of a type holds the address of its elements and their number.
    pub(crate) fn counted(&self, of: At<'_>) -> gimli::Result<Option<Counted>> {
        let entry = self.bare(of)?;
        let found = match entry.called_by_go()? {
            Some(called) => self.in_go(&entry, &called)?,
            None if entry.is_record() => self.in_record(&entry)?,
            None => None,
        };
        let Some(Words { address, number, element, is_text, by_end }) = found else { return Ok(None) };
        if is_text {
            return Ok(Some(Counted { address, number, of: Elements::Text }));
        }
        let Some(element) = element else { return Ok(None) };
        let stride = self.size(element)?;
        // Both words are read at once then.
        let is_near = !by_end || address.checked_add(WORD) == Some(number);
        if stride == 0 || stride > MOST_BYTES || !is_near {
            return Ok(None);
        }
        let of = self.layout_of_any(element)?.filter(|of| *of != Layout::Unknown);
        let values = |of| Elements::Values { of, stride, by_end };
        Ok(of.map(values).map(|of| Counted { address, number, of }))
    }
    /// What a reference leads to: of C++, and of Rust, whose references are pointers with a name.
    pub(crate) fn referred<'u>(&'u self, of: At<'u>) -> gimli::Result<Option<At<'u>>> {
        let entry = self.bare(of)?;
        let is_reference = match entry.tag() {
            gimli::DW_TAG_reference_type | gimli::DW_TAG_rvalue_reference_type => true,
            gimli::DW_TAG_pointer_type => entry.name()?.is_some_and(|name| name.starts_with('&')),
            _ => false,
        };
        if is_reference { self.type_of(&entry) } else { Ok(None) }
    }
    fn in_go<'u>(&'u self, entry: &Entry<'u>, called: &str) -> gimli::Result<Option<Words<'u>>> {
        let is_text = ["string", "[]uint8"].contains(&called);
        let first = self.find_in(entry, &["array"])?.map(|(_, of)| of);
        let element = first.map(|of| self.pointed(of)).transpose()?.flatten();
        let is_slice = called.starts_with("[]") && element.is_some();
        let words = Words { address: 0, number: WORD, element, is_text, by_end: false };
        Ok((is_text || is_slice).then_some(words))
    }
    fn in_record<'u>(&'u self, entry: &Entry<'u>) -> gimli::Result<Option<Words<'u>>> {
        let name = entry.name()?.unwrap_or_default();
        let name = &*name;
        if name == "String" {
            return self.in_string(entry);
        }
        if name.starts_with("Vec<") {
            return self.in_vector(entry);
        }
        let is_text = name.starts_with("basic_string") || name.ends_with("str") || name.contains("Box<str");
        let by_end = name.starts_with("vector<");
        let named: &[(&[&str], &[&str])] = match name {
            _ if SLICES.iter().any(|slice| name.starts_with(slice)) => &[(&["data_ptr"], &["length"])],
            _ if name.starts_with("basic_string<char,") => {
                &[(&["_M_dataplus", "_M_p"], &["_M_string_length"])]
            }
            _ if name.starts_with("basic_string_view<char,") => {
                &[(&["_M_str"], &["_M_len"]), (&["__data_"], &["__size_"]), (&["__data"], &["__size"])]
            }
            _ if by_end => {
                &[(&["_M_impl", "_M_start"], &["_M_impl", "_M_finish"]), (&["__begin_"], &["__end_"])]
            }
            _ if name.starts_with("span<") => &[(&["_M_ptr"], &["_M_extent", "_M_extent_value"])],
            _ => &[],
        };
        for (address, number) in named {
            let (address, number) = (self.word_in(entry, address)?, self.word_in(entry, number)?);
            if let (Some((address, pointer)), Some((number, _))) = (address, number) {
                let element = self.pointed(pointer)?;
                let is_text = is_text || name == "&[u8]" || name == "&mut [u8]";
                return Ok(Some(Words { address, number, element, is_text, by_end }));
            }
        }
        Ok(None)
    }
    /// What a pointer leads to.
    fn pointed<'u>(&'u self, of: At<'u>) -> gimli::Result<Option<At<'u>>> {
        let entry = self.bare(of)?;
        if entry.tag() == gimli::DW_TAG_pointer_type { self.type_of(&entry) } else { Ok(None) }
    }
    /// Rust's `Vec<T>`. Its pointer is one of bytes; what it leads to, its type says.
    fn in_vector<'u>(&'u self, of: &Entry<'u>) -> gimli::Result<Option<Words<'u>>> {
        let Some((number, _)) = self.word_in(of, &["len"])? else { return Ok(None) };
        let is_first = |child: &&Entry<'_>| child.tag() == gimli::DW_TAG_template_type_parameter;
        let children = of.children()?;
        let element = children.iter().find(is_first).map(|child| self.type_of(child)).transpose()?.flatten();
        let of_bytes = Some(ValueType::Integer { bytes: 1, signed: false });
        let is_text = element.map(|of| self.value_type(of)).transpose()? == of_bytes;
        let mut path = vec!["buf"];
        while path.len() <= DEEPEST {
            if let Some((address, _)) = self.word_in(of, &path)? {
                return Ok(Some(Words { address, number, element, is_text, by_end: false }));
            }
            let leads = |name: &&str| {
                self.find_in(of, &[&path[..], &[*name]].concat()).is_ok_and(|found| found.is_some())
            };
            let Some(next) = BUFFER.into_iter().find(leads) else { return Ok(None) };
            path.push(next);
        }
        Ok(None)
    }
    /// Rust's `String`.
    fn in_string<'u>(&'u self, of: &Entry<'u>) -> gimli::Result<Option<Words<'u>>> {
        let Some((offset, vector)) = self.find_in(of, &["vec"])? else { return Ok(None) };
        let found = self.in_vector(&self.bare(vector)?)?;
        Ok(found.map(|words| Words {
            address: words.address.saturating_add(offset),
            number: words.number.saturating_add(offset),
            is_text: true,
            ..words
        }))
    }
    /// Offset and type of a member of a member, if it is one word: a pointer or a number.
    fn word_in<'u>(&'u self, of: &Entry<'u>, path: &[&str]) -> gimli::Result<Option<(u64, At<'u>)>> {
        let Some((offset, of)) = self.find_in(of, path)? else { return Ok(None) };
        let is_word = !self.bare(of)?.is_record() && self.size(of)? == WORD;
        Ok(is_word.then_some((offset, of)))
    }
    /// Offset and type of a member of a member.
    fn find_in<'u>(&'u self, of: &Entry<'u>, path: &[&str]) -> gimli::Result<Option<(u64, At<'u>)>> {
        let Some((first, rest)) = path.split_first() else { return Ok(None) };
        let found = self.find_field(of, first, &mut Vec::new(), (0, &mut { MOST_MEMBERS }))?;
        let Some((offset, member, None)) = found else { return Ok(None) };
        if rest.is_empty() {
            return Ok(Some((offset, member)));
        }
        let inner = self.find_in(&self.bare(member)?, rest)?;
        Ok(inner.map(|(inside, of)| (offset.saturating_add(inside), of)))
    }
}
