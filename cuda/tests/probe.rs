//! A probe in processes whose only `libcuda.so` is one that we compile: good, stub, without devices, with a function
//! missing, no library at all. It answers every time.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Says to the test below, run in a child process, what to expect.
const EXPECT: &str = "FOREBAY_TEST_EXPECT";

const GOOD: &str = r#"
#include <stddef.h>
#include <string.h>
int cuInit(unsigned flags) { return flags; }
int cuDriverGetVersion(int *out) { *out = 13000; return 0; }
int cuDeviceGetCount(int *out) { *out = 1; return 0; }
int cuDeviceGet(int *out, int number) { *out = number; return 0; }
int cuDeviceGetName(char *out, int bytes, int device) { strncpy(out, "Tester", bytes); return 0; }
int cuDeviceTotalMem_v2(size_t *out, int device) { *out = 4096; return 0; }
"#;

/// Makes a folder with a `libcuda.so` of that source.
fn library(name: &str, source: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).unwrap();
    let mut compiler = Command::new("cc")
        .args(["-x", "c", "-w", "-shared", "-fPIC", "-Wl,-soname,libcuda.so", "-o"])
        .arg(folder.join("libcuda.so"))
        .arg("-")
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    compiler.stdin.take().unwrap().write_all(source.as_bytes()).unwrap();
    assert!(compiler.wait().unwrap().success());
    folder
}

/// Runs `answers_as_expected` in a process that finds libraries in `folder` first.
fn expect(folder: &Path, expected: &str) {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "answers_as_expected", "--nocapture"])
        .env("LD_LIBRARY_PATH", folder)
        .env(EXPECT, expected)
        .output()
        .unwrap();
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
}

/// Does nothing unless a test started it.
#[test]
fn answers_as_expected() {
    let Ok(expected) = std::env::var(EXPECT) else { return };
    let answer = match forebay_cuda::probe() {
        Ok(driver) => format!("{} {} {}", driver.version, driver.devices[0].name, driver.devices[0].memory_bytes),
        Err(missing) => missing.to_string(),
    };
    assert!(answer.contains(&expected), "expected={expected:?} answer={answer:?}");
}

#[test]
fn a_driver_answers() {
    expect(&library("good", GOOD), "13.0 Tester 4096");
}

#[test]
fn a_missing_function_is_named() {
    expect(&library("old", &GOOD.replace("cuDeviceTotalMem_v2", "cuDeviceTotalMem")), "function=cuDeviceTotalMem_v2");
}

#[test]
fn the_toolkits_stub_is_told_from_a_driver() {
    expect(&library("stub", &GOOD.replace("return flags;", "return 34;")), "toolkit's stub");
}

#[test]
fn no_device_is_said() {
    expect(&library("none", &GOOD.replace("*out = 1;", "*out = 0;")), "no device for this process");
    expect(&library("hidden", &GOOD.replace("return flags;", "return 100;")), "no device for this process");
}

#[test]
fn a_failing_call_is_named() {
    let broken = GOOD.replace("*out = 13000; return 0;", "return 999;");
    expect(&library("broken", &broken), "call=cuDriverGetVersion code=999");
}
