//! PRO-6: references between units, and to other files, are followed. One source is compiled in each form, and says the same in
//! each as in the usual one.

mod common;

use std::path::Path;
use std::process::Command;

use common::forms::{Folder, compiled, said};
use common::run;

/// What the usual form says.
fn usual(name: &str, compiler: &str) -> Vec<String> {
    let (_, program) = compiled(name, compiler, &["-g"]);
    let said = said(&program, Folder::default());
    assert!(said.iter().all(|one| !one.starts_with("handle None")), "{said:#?}");
    said
}

/// Whether a tool is there; if not, that is printed.
fn has(tool: &str) -> bool {
    let found = Command::new(tool).arg("--version").output().is_ok();
    if !found {
        eprintln!("SKIP: {tool} is not on this machine");
    }
    found
}

/// How often one unit of a program refers to another, by readelf.
fn references(program: &Path) -> usize {
    let text = run("readelf", &["--debug-dump=abbrev", program.to_str().expect("UTF-8")]);
    ["DW_FORM_ref_addr", "DW_FORM_ref_sig8", "DW_FORM_GNU_ref_alt"]
        .map(|form| text.matches(form).count())
        .iter()
        .sum()
}

#[test]
fn link_time_optimisation_leaves_types_in_other_units() {
    for (compiler, flags) in [("gcc", &["-g", "-flto"][..]), ("clang", &["-g", "-flto", "-fuse-ld=lld"])] {
        if !has(compiler) || (compiler == "clang" && !has("ld.lld")) {
            continue;
        }
        let (_, program) = compiled(&format!("lto-{compiler}"), compiler, flags);
        assert!(references(&program) > 0, "{compiler}: nothing is tried");
        assert_eq!(said(&program, Folder::default()), usual(&format!("lto-usual-{compiler}"), compiler));
    }
}

#[test]
fn type_units_are_found_by_their_signatures() {
    // clang makes them of C++ alone.
    let compilers = ["gcc", "g++", "clang++"];
    for (compiler, version) in compilers.into_iter().flat_map(|one| [(one, "4"), (one, "5")]) {
        if !has(compiler) {
            continue;
        }
        let flags = ["-g", &*format!("-gdwarf-{version}"), "-fdebug-types-section"];
        let (_, program) = compiled(&format!("types-{compiler}-{version}"), compiler, &flags);
        assert!(references(&program) > 0, "{compiler}: nothing is tried");
        let usual = usual(&format!("types-usual-{compiler}-{version}"), compiler);
        assert_eq!(said(&program, Folder::default()), usual, "{compiler} {version}");
    }
}

#[test]
fn packed_sections_say_the_same_by_flag_and_by_name() {
    let usual = usual("packed-usual", "gcc");
    for (form, section) in [("zlib", ".debug_info"), ("zlib-gnu", ".zdebug_info")] {
        let (_, program) = compiled(&format!("packed-{form}"), "gcc", &["-g", &format!("-gz={form}")]);
        let sections = run("readelf", &["-SW", program.to_str().expect("UTF-8")]);
        assert!(sections.contains(section), "nothing is tried");
        assert_eq!(said(&program, Folder::default()), usual, "{form}");
    }
}

#[test]
fn what_units_share_is_found_where_dwz_put_it() {
    if !has("dwz") {
        return;
    }
    let usual = usual("dwz-usual", "gcc");
    let names = ["dwz-1", "dwz-2"].map(|name| compiled(name, "gcc", &["-g", "-gdwarf-4"]).1);
    let paths = names.each_ref().map(|path| path.to_str().expect("UTF-8"));
    let shared = format!("{}.shared", paths[0]);
    run("dwz", &["-m", &shared, paths[0], paths[1]]);
    for (program, text) in names.iter().zip(paths) {
        assert!(run("readelf", &["-SW", text]).contains(".gnu_debugaltlink"), "nothing is tried");
        assert!(references(program) > 0, "nothing is tried");
        let with = Folder { shared: Some(shared.clone().into()), ..Folder::default() };
        assert_eq!(said(program, with), usual);
        // Another build's file, or none: what is in it is unknown, and nothing else is said.
        for other in [None, Some(names[0].clone())] {
            let without = said(program, Folder { shared: other, ..Folder::default() });
            assert!(without.iter().all(|one| !one.contains("Prototype")), "{without:#?}");
        }
    }
}
