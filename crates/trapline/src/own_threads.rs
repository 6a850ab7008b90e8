//! Whether a program may make threads in its own way, not by its C library's `pthread_create`.
//!
//! In: a program's image. Out: whether it names `clone`, or its own code may make the system call. Such threads
//! may have no control block of the library, or another thread's; one that lives for a millisecond is seen by
//! no look at all threads (`traced::births`). Errs on the side of yes: then stubs count without rseq areas.
//! Does not: follow a number that is computed, or `clone` by an address in data.
//!
//! A program that needs libraries imports `clone`. A static one has it inside, and its own C library calls it
//! there, from functions that have names.

use trapline_image::{Function, Image};
use trapline_record::Svma;

use crate::arch::{references, takes_number, thread_calls};

/// The C library's names for it.
const CLONE: [&str; 2] = ["clone", "__clone"];
/// Functions in which glibc (since 2.35; before, it registers no rseq areas) and musl call it, or make the
/// system call.
const LIBRARYS: [&str; 14] = [
    "clone",
    "__clone",
    "clone3",
    "__clone3",
    "__clone_internal",
    "__clone_internal_fallback",
    "_Fork",
    "__libc_fork",
    "fork",
    "vfork",
    "__vfork",
    "__pthread_create",
    "pthread_create",
    "posix_spawn",
];

/// Whether it may.
pub(crate) fn own_threads(image: &Image) -> bool {
    if image.imported().any(|name| CLONE.contains(&name.raw)) {
        return true;
    }
    // What the compiler made of a function has a suffix.
    let is_of = |function: &Function, names: &[&str]| {
        image.names(function).any(|name| names.contains(&name.raw.split('.').next().unwrap_or_default()))
    };
    let has_library = image.is_static();
    let clones = image.functions().iter().filter(|function| has_library && is_of(function, &CLONE));
    let clones: Vec<u64> = clones.map(|function| function.start.0).collect();
    let is_programs = |at: u64| {
        let function = image.function_at(Svma(at)).map(|function| image.function(function));
        !has_library || function.is_some_and(|function| !is_of(function, &LIBRARYS))
    };
    image.text_ranges().iter().any(|&(start, len)| {
        let code = image.text(start, len).unwrap_or_default();
        let named = clones.iter().flat_map(|&clone| references(code, start.0, clone));
        let calls = thread_calls(code, start.0)
            .filter(|&(_, callee)| callee.is_none_or(|callee| takes_number(image, Svma(callee))));
        named.chain(calls.map(|(at, _)| at)).any(is_programs)
    })
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use std::process::Command;

    use trapline_image::Image;

    use super::own_threads;

    /// What this program's compiler makes of it.
    fn may(name: &str, source: &str, flags: &[&str]) -> bool {
        let at = std::env::temp_dir().join(format!("trapline-own-{name}-{}", std::process::id()));
        let file = at.with_extension("c");
        let head = "#include <unistd.h>\n#define ALONE __attribute__((noipa))\n";
        std::fs::write(&file, format!("{head}{source}")).expect("written");
        let done = Command::new("cc").arg("-O2").args(flags).arg("-o").arg(&at).arg(&file).status();
        assert!(done.is_ok_and(|status| status.success()), "{name}: cc");
        let bytes = std::fs::read(&at).expect("built");
        let image = Image::parse(bytes, &mut trapline_image::NoDebugFiles).expect("an image");
        std::fs::remove_file(&file).expect("ours");
        std::fs::remove_file(&at).expect("ours");
        own_threads(&image)
    }

    #[test]
    fn only_what_takes_the_number_of_a_system_call_makes_threads() {
        const DIRECT: &str = "int main(int c, char **v) { return c > 9 ? syscall(435, v, 88) : 0; }";
        const PASSED: &str = "ALONE long pass(long n, void *a) { return syscall(n, a, 88) + 1; }
            int main(int c, char **v) { return c > 9 ? pass(435, v) : 0; }";
        const OWN: &str = "ALONE long own(long n, void *a) { long r; __asm__ volatile(\"syscall\"
                : \"=a\"(r) : \"a\"(n), \"D\"(a), \"S\"(88L) : \"rcx\", \"r11\", \"memory\"); return r; }
            int main(int c, char **v) { return c > 9 ? own(435, v) : 0; }";
        // As in cc1plus, where 435 is the number of an option, and which calls `syscall` for a futex.
        const OPTION: &str = "ALONE int option(int n) { return n * 3; }
            ALONE int wait(int *at) { return syscall(202, at, 0, 0); }
            int main(int c, char **v) { return c > 9 ? option(435) + wait(&c) : 0; }";
        // There too: it leads to code that no function is known to have.
        const NAMELESS: &str = r#"__asm__(".pushsection .text.unlikely\n.Lnameless: call abort\nud2\n.popsection");
            ALONE int option(int n) { if (n == 1) __asm__ volatile("jmp .Lnameless"); return n * 3; }
            int main(int c, char **v) { return c > 9 ? option(435) : 0; }"#;
        for flags in [&[][..], &["-no-pie"], &["-static"], &["-fno-plt"], &["-static-pie"]] {
            let may = |name, source| may(&format!("{name}{}", flags.concat()), source, flags);
            assert!(may("direct", DIRECT), "{flags:?}");
            assert!(may("passed", PASSED), "{flags:?}");
            assert!(may("own", OWN), "{flags:?}");
            let plain = may("plain", "int main(void) { return 0; }");
            assert_eq!(may("option", OPTION), plain, "{flags:?}");
            assert_eq!(may("nameless", NAMELESS), plain, "{flags:?}");
        }
    }
}
