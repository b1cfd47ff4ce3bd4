//! The program's environment, changed before the program begins.
//!
//! Not by setenv(3) and its kind: a program may bring those along (bash does), and they are not
//! ready yet.

use std::ffi::{CStr, CString, c_char};

/// A list of strings that ends in NULL.
pub type Strings = *const *const c_char;

unsafe extern "C" {
    /// The environment.
    pub static mut environ: Strings;
}

/// Returns the strings of a list that ends in NULL.
///
/// # Safety
/// It is NULL or such a list.
pub unsafe fn strings<'a>(list: Strings) -> Vec<&'a CStr> {
    let mut out = Vec::new();
    if list.is_null() {
        return out;
    }
    // SAFETY: the caller's promise.
    unsafe {
        let mut at = list;
        while !(*at).is_null() {
            out.push(CStr::from_ptr(*at));
            at = at.add(1);
        }
    }
    out
}

/// Gives a variable that is there or not a value, or takes it out. Called before the program
/// begins, by its only thread. What main(3) has as its third argument is changed with it, but for a
/// variable that was not there.
pub fn set(name: &str, value: Option<&[u8]>) {
    let text = value.and_then(|v| CString::new([name.as_bytes(), b"=", v].concat()).ok());
    // It stays for as long as the program.
    let text = text.map_or(std::ptr::null_mut(), CString::into_raw).cast_const();
    // SAFETY: the environment is NULL or a list that ends in NULL, and nobody else uses it yet. It
    // gets no longer in its place.
    unsafe {
        let mut kept: Vec<*const c_char> = Vec::new();
        let mut is_set = false;
        for entry in strings(environ) {
            let has_name =
                entry.to_bytes().strip_prefix(name.as_bytes()).is_some_and(|r| r.starts_with(b"="));
            match has_name {
                false => kept.push(entry.as_ptr()),
                true if !text.is_null() && !is_set => {
                    kept.push(text);
                    is_set = true;
                }
                true => {}
            }
        }
        if !text.is_null() && !is_set {
            kept.extend([text, std::ptr::null()]);
            environ = kept.leak().as_ptr();
        } else if !environ.is_null() {
            kept.push(std::ptr::null());
            std::ptr::copy_nonoverlapping(kept.as_ptr(), environ.cast_mut(), kept.len());
        }
    }
}
