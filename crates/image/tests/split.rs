//! PRO-5: split debug information says what the same compiler says in one file. Both are compiled here from one source.

mod common;

use std::process::Command;

use common::forms::{Folder, compiled, said};

/// What is said without the files: nothing of functions and types; lines stay.
fn is_nothing(said: &[String]) -> bool {
    let of_functions = said.iter().filter(|one| one.contains("other.c") || one.contains("main.c"));
    of_functions.clone().count() == 5 && of_functions.clone().all(|one| one.contains("None Some"))
}

#[test]
fn split_debug_information_says_what_whole_one_says() {
    let mut compared = 0;
    let versions =
        [("gcc", "5"), ("gcc", "4"), ("clang", "5"), ("clang", "4"), ("clang++", "5"), ("clang++", "4")];
    // Types in units of their own, or not.
    let types: [&[&str]; 2] = [&[], &["-fdebug-types-section"]];
    for ((compiler, version), more) in versions.into_iter().flat_map(|one| types.map(|more| (one, more))) {
        if Command::new(compiler).arg("--version").output().is_err() {
            eprintln!("SKIP: {compiler} is not on this machine");
            continue;
        }
        let dwarf = format!("-gdwarf-{version}");
        let flags = ["-g", &*dwarf];
        let name = format!("{compiler}-{version}-{}", more.len());
        let (_, whole) = compiled(&format!("whole-{name}"), compiler, &flags);
        let whole = said(&whole, Folder::default());
        assert!(whole.iter().all(|one| !one.starts_with("handle None")), "{whole:#?}");
        let split = [&flags[..], &["-gsplit-dwarf"], more].concat();
        let (folder, program) = compiled(&format!("split-{name}"), compiler, &split);
        let units = Folder { package: None, shared: None, units: Some(folder.clone()) };
        assert_eq!(said(&program, units), whole, "{name}");
        let nothing = said(&program, Folder::default());
        assert!(is_nothing(&nothing), "{name}: {nothing:#?}");
        // Files of other units have other ids (PRO-5).
        let swapped = folder.join("swapped");
        std::fs::create_dir_all(&swapped).expect("a folder");
        std::fs::copy(folder.join("main.dwo"), swapped.join("other.dwo")).expect("a file");
        std::fs::copy(folder.join("other.dwo"), swapped.join("main.dwo")).expect("a file");
        let wrong = said(&program, Folder { package: None, shared: None, units: Some(swapped) });
        assert!(is_nothing(&wrong), "{name}: {wrong:#?}");
        // binutils packs DWARF 5 into files that nobody reads, gdb neither.
        let tools: &[&str] = if version == "4" { &["dwp", "llvm-dwp"] } else { &["llvm-dwp"] };
        for tool in tools {
            let package = folder.join(format!("{tool}.dwp"));
            let mut command = Command::new(tool);
            let objects = ["main.dwo", "other.dwo"].map(|unit| folder.join(unit));
            let made = command.args(objects).arg("-o").arg(&package).current_dir(&folder).output();
            match made {
                Ok(made) if made.status.success() => {
                    let packed = Folder { package: Some(package), units: None, shared: None };
                    assert_eq!(said(&program, packed), whole, "{name} {tool}");
                    compared += 1;
                }
                other => eprintln!("SKIP: {tool} with {name}: {other:?}"),
            }
        }
    }
    assert!(compared > 0 || Command::new("llvm-dwp").output().is_err(), "no package was compared");
}

/// A hostile file in place of a unit or a package ends in nothing, not in a panic.
#[test]
fn broken_files_say_nothing() {
    let (folder, program) = compiled("broken", "gcc", &["-g", "-gsplit-dwarf"]);
    let intact = std::fs::read(folder.join("main.dwo")).expect("a file");
    let broken = folder.join("broken");
    std::fs::create_dir_all(&broken).expect("a folder");
    for step in 0..200 {
        let mut bytes = intact.clone();
        let len = bytes.len();
        match step % 4 {
            0 => bytes.truncate(len * step / 200),
            _ => (0..8).for_each(|nth| bytes[(step * 7919 + nth * 104_729) % len] ^= 1 << (step % 8)),
        }
        std::fs::write(broken.join("main.dwo"), &bytes).expect("room");
        drop(said(&program, Folder { package: None, shared: None, units: Some(broken.clone()) }));
        let package = Some(broken.join("main.dwo"));
        drop(said(&program, Folder { package, units: None, shared: None }));
    }
}
