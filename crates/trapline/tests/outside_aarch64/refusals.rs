//! What is not supported is refused by name.

use crate::victim::Victim;

#[test]
fn words_that_take_no_probe_are_named() {
    let Some(victim) = Victim::start() else { return };
    for (name, kind, reason) in
        [("victim_call", "immovable", "a system call"), ("victim_exclusive", "immovable", "exclusive")]
    {
        let error = trapline::Session::builder().pid(victim.pid()).probe(name).expect("a probe").count();
        let error = error.expect_err("refused").to_string();
        println!("{error}");
        assert!(error.contains(reason), "{kind}: {error}");
    }
}

/// A process of the same kernel in the other instruction set: a program that pauses for ever. It is made
/// here, as there is no compiler where this runs.
#[test]
fn a_process_of_32_bits_is_named() {
    // mov r7, #29 (pause); svc #0; b to the first.
    let code = [0xE3A0_701D_u32, 0xEF00_0000, 0xEAFF_FFFC];
    let (at, len) = (0x1_0054_u32, 0x54 + 12);
    let half = |low: u16, high: u16| u32::from(low) | u32::from(high) << 16;
    // An ELF header for AArch32, EABI 5, and one segment: all of the file, at 0x10000, to read and execute.
    let header = [half(2, 40), 1, at, 52, 0, 0x0500_0000, half(52, 32), half(1, 0), half(0, 0)];
    let segment = [1, 0, 0x1_0000, 0x1_0000, len, len, 5, 0x1000];
    let words = header.iter().chain(&segment).chain(&code).flat_map(|word| word.to_le_bytes());
    let file: Vec<u8> = b"\x7FELF\x01\x01\x01".iter().copied().chain([0; 9]).chain(words).collect();
    let path = std::env::temp_dir().join(format!("trapline-aarch32-{}", std::process::id()));
    std::fs::write(&path, file).expect("a temporary file");
    let runs = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&path, runs).expect("ours");
    let mut child = match std::process::Command::new(&path).spawn() {
        Ok(child) => child,
        Err(why) => return println!("SKIP no program of 32 bits runs here: {why}"),
    };
    // An exec ends its caller's wait when the old memory is released, a moment before the new one exists.
    // Until then /proc names this program.
    let running = format!("/proc/{}/exe", child.id());
    while std::fs::read_link(&running).expect("it pauses for ever") != path {
        std::thread::yield_now();
    }
    let error = trapline::Session::builder().pid(child.id()).probe("main").expect("a probe").count();
    let error = error.expect_err("refused").to_string();
    println!("{error}");
    child.kill().and_then(|()| child.wait()).expect("ours");
    std::fs::remove_file(&path).expect("ours");
    assert!(error.contains("32-bit (AArch32)"), "{error}");
}

#[test]
fn a_function_with_a_return_address_that_cannot_be_replaced_is_named() {
    let Some(victim) = Victim::start() else { return };
    let before = victim.text();
    let builder = trapline::Session::builder().pid(victim.pid()).probe("victim_loop").expect("a probe");
    let trampoline = builder.returns(trapline::Returns::Stack).latency();
    let error = trampoline.expect_err("refused").to_string();
    println!("{error}");
    assert!(error.contains("leads back to the first instruction"), "{error}");
    assert_eq!(victim.text(), before);
}

/// A function for which not all exits can be found.
#[test]
fn what_cannot_be_timed_is_named() {
    let Some(victim) = Victim::start() else { return };
    let before = victim.text();
    let builder = trapline::Session::builder().pid(victim.pid()).probe("victim_jumps").expect("a probe");
    let error = builder.returns(trapline::Returns::Exits).latency().expect_err("refused").to_string();
    println!("{error}");
    assert!(error.contains("a jump through a register"), "{error}");
    assert_eq!(victim.text(), before);
}
