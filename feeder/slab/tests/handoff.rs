//! The hand-off between threads of one process: order, contents, returns, closing, and peers that break the rules.

mod common;

use std::collections::VecDeque;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use common::{Dice, bells_of, filled, is_stamped, peek, poke, rung, slab, stamp};
use proptest::prelude::*;
use slab::{Fault, Filled, Filler, Lease, Shape, Slab, SlabError, Taken, Taker};

fn assert_send<T: Send>() {}
fn assert_send_sync<T: Send + Sync>() {}

#[test]
fn what_may_move_between_threads() {
    assert_send_sync::<Slab>();
    assert_send_sync::<Lease>();
    assert_send::<Filler>();
    assert_send::<Taker>();
}

#[test]
fn a_growing_slab_gives_each_slot_once_it_is_there_and_only_once() {
    let (slots, slot_bytes) = (40, 700_000usize.next_multiple_of(4096));
    let memory = Slab::create_growing(Shape { slots, slot_bytes }).unwrap();
    let mut filler = memory.filler().unwrap();
    assert_eq!(filler.free_slots() as usize, (memory.present_bytes() - 4096 * 2) / slot_bytes, "beside the header");
    assert!(memory.grow().unwrap());
    let present = filler.free_slots();
    assert!(present > 0 && present < slots, "present={present}");
    let taken: Vec<u32> = std::iter::from_fn(|| filler.take_free()).collect();
    assert_eq!(taken.len() as u32, present);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| while memory.grow().unwrap() {});
        }
    });
    assert_eq!(memory.present_bytes(), memory.bytes());
    assert_eq!(nix::sys::stat::fstat(memory.fd()).unwrap().st_blocks as usize * 512, memory.bytes());
    let mut all: Vec<u32> = taken.into_iter().chain(std::iter::from_fn(|| filler.take_free())).collect();
    all.sort_unstable();
    assert_eq!(all, (0..slots).collect::<Vec<_>>());
    assert!(!memory.grow().unwrap());
}

/// Publishes `count` stamped batches, waiting for slots as needed.
fn fill(filler: &mut Filler, memory: &Slab, count: u64) {
    for tag in 0..count {
        let slot = loop {
            match filler.take_free() {
                Some(slot) => break slot,
                None => assert!(filler.wait_free(Duration::MAX)),
            }
        };
        stamp(memory.slot(slot), tag);
        filler.publish(filled(slot, tag));
        if tag % 3 == 0 || filler.free_slots() == 0 {
            filler.wake();
        }
    }
    filler.close();
}

#[test]
fn stamped_batches_survive_many_threads_and_any_order_of_returns() {
    const BATCHES: u64 = 6000;
    const KEEPERS: usize = 3;
    for slots in [1, 2, 7, 70] {
        let memory = slab(slots);
        let (mut filler, mut taker) = memory.clone().split();
        let filling = thread::spawn({
            let memory = memory.clone();
            move || {
                fill(&mut filler, &memory, BATCHES);
                filler
            }
        });
        let (senders, keepers): (Vec<_>, Vec<_>) = (0..KEEPERS)
            .map(|seed| {
                let (sender, receiver) = mpsc::channel::<(Lease, u64)>();
                (sender, thread::spawn(move || keep(&receiver, seed as u64, slots as usize / (KEEPERS + 1))))
            })
            .unzip();
        let mut dice = Dice(9);
        for tag in 0..BATCHES {
            let Taken::Filled(got) = taker.wait_take(None) else { panic!("no batch {tag}") };
            assert_eq!(got, filled(got.slot, tag));
            senders[dice.below(KEEPERS)].send((taker.lease(got.slot), tag)).unwrap();
        }
        assert_eq!(taker.wait_take(None), Taken::Closed);
        drop(senders);
        let kept: u64 = keepers.into_iter().map(|keeper| keeper.join().unwrap()).sum();
        assert_eq!(kept, BATCHES);
        let filler = filling.join().unwrap();
        assert_eq!((taker.leased(), filler.free_slots(), filler.stray_returns()), (0, slots, 0));
    }
}

/// Keeps up to `limit` leases and drops them in random order, each checked at the end of its life.
fn keep(receiver: &mpsc::Receiver<(Lease, u64)>, seed: u64, limit: usize) -> u64 {
    let (mut kept, mut count, mut dice) = (Vec::new(), 0, Dice(seed));
    let check = |(lease, tag): (Lease, u64)| assert!(is_stamped(lease.memory(), tag), "batch {tag} changed");
    for arrived in receiver {
        count += 1;
        kept.push(arrived);
        if kept.len() > limit {
            check(kept.swap_remove(dice.below(kept.len())));
        }
    }
    kept.into_iter().for_each(check);
    count
}

/// A user who keeps every batch in a list: none is overwritten, the hand-off stops and goes on with the first return.
#[test]
fn what_is_kept_is_never_overwritten() {
    const SLOTS: u32 = 5;
    let memory = slab(SLOTS);
    let (mut filler, mut taker) = memory.clone().split();
    let mut next = 0;
    let mut refill = |filler: &mut Filler| {
        while let Some(slot) = filler.take_free() {
            stamp(memory.slot(slot), next);
            filler.publish(filled(slot, next));
            next += 1;
        }
        filler.wake();
    };
    refill(&mut filler);
    assert_eq!(taker.ready_slots(), SLOTS);
    let mut kept = VecDeque::new();
    for turn in 0..3 * u64::from(SLOTS) {
        while let Some(got) = taker.try_take() {
            kept.push_back((taker.lease(got.slot), got.tag));
        }
        assert_eq!((taker.leased(), kept.len()), (SLOTS, SLOTS as usize));
        refill(&mut filler);
        assert_eq!((filler.free_slots(), taker.try_take()), (0, None), "turn {turn}");
        assert_eq!(taker.wait_take(Some(Duration::ZERO)), Taken::TimedOut);
        assert!(!filler.wait_free(Duration::ZERO));
        assert!(kept.iter().all(|(lease, tag)| is_stamped(lease.memory(), *tag)));
        let (lease, tag) = kept.pop_front().unwrap();
        assert_eq!(tag, turn);
        lease.give_back();
        assert!(filler.wait_free(Duration::ZERO));
        assert_eq!((filler.free_slots(), taker.leased()), (1, SLOTS - 1));
        refill(&mut filler);
    }
}

/// Every length of an epoch around the number of slots, with a consumer that keeps all of it: what began the next epoch
/// must not touch what the last one left.
#[test]
fn epochs_of_any_length_share_the_slots() {
    const SLOTS: u32 = 4;
    for length in 1..=2 * u64::from(SLOTS) {
        let memory = slab(SLOTS);
        let (mut filler, mut taker) = memory.clone().split();
        let mut kept: VecDeque<(Lease, u64)> = VecDeque::new();
        for epoch in 0..5 {
            for tag in epoch * length..(epoch + 1) * length {
                if filler.free_slots() == 0 {
                    drop(kept.pop_front());
                }
                let slot = filler.take_free().unwrap();
                stamp(memory.slot(slot), tag);
                filler.publish(Filled { generation: epoch, ..filled(slot, tag) });
                let got = taker.try_take().unwrap();
                assert_eq!((got.tag, got.generation), (tag, epoch));
                kept.push_back((taker.lease(got.slot), tag));
                assert!(kept.iter().all(|(lease, tag)| is_stamped(lease.memory(), *tag)), "{length} {tag}");
            }
        }
    }
}

#[test]
fn slots_are_whole_pages_of_one_region() {
    let memory = Slab::create(Shape { slots: 3, slot_bytes: 4097 }).unwrap();
    assert_eq!(memory.shape(), Shape { slots: 3, slot_bytes: 8192 });
    let (start, bytes) = memory.region();
    assert_eq!((bytes, start as usize % 4096), (3 * 8192, 0));
    for slot in 0..3 {
        let (address, slot_bytes) = memory.slot(slot);
        assert_eq!((address as usize - start as usize, slot_bytes), (slot as usize * 8192, 8192));
        stamp((address, slot_bytes), u64::from(slot));
    }
    assert!((0..3).all(|slot| is_stamped(memory.slot(slot), u64::from(slot))));
    assert_eq!(memory.bytes() as i64, nix::sys::stat::fstat(memory.fd()).unwrap().st_size);
    assert!(std::panic::catch_unwind(|| memory.slot(3)).is_err());
}

#[test]
fn memory_outlives_everything_but_the_last_lease() {
    let memory = slab(2);
    let (mut filler, mut taker) = memory.clone().split();
    let slot = filler.take_free().unwrap();
    stamp(memory.slot(slot), 7);
    filler.publish(filled(slot, 7));
    let got = taker.try_take().unwrap();
    let lease = taker.lease(got.slot);
    drop((memory, filler, taker));
    assert!(thread::spawn(move || is_stamped(lease.memory(), 7)).join().unwrap());
}

/// Both sides over mappings of their own, as two processes would have them.
#[test]
fn a_second_mapping_hands_over_the_same_memory() {
    let here = slab(3);
    let there = Slab::from_parts(here.fd().try_clone_to_owned().unwrap(), bells_of(&here)).unwrap();
    assert_eq!((there.shape(), there.bytes()), (here.shape(), here.bytes()));
    assert_ne!(there.region().0, here.region().0);
    let mut filler = there.filler().unwrap();
    let mut taker = here.taker().unwrap();
    let filling = thread::spawn(move || fill(&mut filler, &there, 500));
    for tag in 0..500 {
        let Taken::Filled(got) = taker.wait_take(None) else { panic!("no batch {tag}") };
        let lease = taker.lease(got.slot);
        assert_eq!(got.tag, tag);
        assert!(is_stamped(lease.memory(), tag));
    }
    assert_eq!(taker.wait_take(None), Taken::Closed);
    filling.join().unwrap();
}

#[test]
fn a_side_is_taken_once_over_all_mappings() {
    let here = slab(1);
    let there = Slab::from_fd(here.fd().try_clone_to_owned().unwrap()).unwrap();
    let _filler = here.filler().unwrap();
    assert!(matches!(there.filler(), Err(SlabError::Claimed { side: "filler" })));
    let _taker = there.taker().unwrap();
    assert!(matches!(here.taker(), Err(SlabError::Claimed { side: "taker" })));
    assert!(std::panic::catch_unwind(|| here.split()).is_err());
}

#[test]
fn nobody_rings_when_nobody_waits() {
    let memory = slab(2);
    let (mut filler, mut taker) = memory.clone().split();
    for tag in 0..10 {
        let slot = filler.take_free().unwrap();
        filler.publish(filled(slot, tag));
        filler.wake();
        let got = taker.try_take().unwrap();
        drop(taker.lease(got.slot));
    }
    // Waits that ended on their own leave no flag behind either.
    assert_eq!(taker.wait_take(Some(Duration::from_micros(10))), Taken::TimedOut);
    let slots = [filler.take_free().unwrap(), filler.take_free().unwrap()];
    assert!(!filler.wait_free(Duration::from_micros(10)));
    filler.publish(filled(slots[0], 10));
    filler.wake();
    let got = taker.try_take().unwrap();
    drop(taker.lease(got.slot));
    assert!(!rung(&memory.bells().filled) && !rung(&memory.bells().returned));
}

#[test]
fn a_sleeping_waiter_is_woken_by_one_ring() {
    let memory = slab(4);
    let (mut filler, mut taker) = memory.clone().split();
    let waiting = thread::spawn(move || {
        let first = taker.wait_take(None);
        (first, taker.try_take(), taker)
    });
    common::until_raised(memory.fd(), common::TAKER_WAITS_AT);
    for tag in 0..2 {
        let slot = filler.take_free().unwrap();
        filler.publish(filled(slot, tag));
    }
    filler.wake();
    let (first, second, taker) = waiting.join().unwrap();
    assert!(matches!(first, Taken::Filled(Filled { tag: 0, .. })));
    assert!(matches!(second, Some(Filled { tag: 1, .. })));

    filler.take_free().unwrap();
    filler.take_free().unwrap();
    let waiting = thread::spawn(move || (filler.wait_free(Duration::MAX), filler));
    common::until_raised(memory.fd(), common::FILLER_WAITS_AT);
    drop(taker.lease(second.unwrap().slot));
    let (came_back, filler) = waiting.join().unwrap();
    assert!(came_back);
    assert_eq!(filler.free_slots(), 1);
}

#[test]
fn closing_ends_every_wait() {
    // The filler closes by being dropped: first what it published, then the end.
    let (mut filler, mut taker) = slab(2).split();
    let slot = filler.take_free().unwrap();
    filler.publish(filled(slot, 1));
    drop(filler);
    assert_eq!(taker.wait_take(None), Taken::Filled(filled(slot, 1)));
    assert_eq!(taker.wait_take(None), Taken::Closed);
    drop(taker.lease(slot));

    // Each side's waiter, closed by the other side and from its own.
    for own in [false, true] {
        let memory = slab(1);
        let (mut filler, mut taker) = memory.clone().split();
        let closer = if own { taker.closer() } else { filler.closer() };
        let waiting = thread::spawn(move || taker.wait_take(None));
        common::until_raised(memory.fd(), common::TAKER_WAITS_AT);
        closer.close();
        assert_eq!(waiting.join().unwrap(), Taken::Closed);
        assert!(filler.taker_closed() && filler.taker_gone());
        // A free slot is found all the same; without one there is nothing to wait for.
        assert!(filler.wait_free(Duration::MAX));
        filler.take_free().unwrap();
        assert!(!filler.wait_free(Duration::MAX));

        let memory = slab(1);
        let (mut filler, taker) = memory.clone().split();
        filler.take_free().unwrap();
        let closer = if own { filler.closer() } else { taker.closer() };
        let waiting = thread::spawn(move || filler.wait_free(Duration::MAX));
        common::until_raised(memory.fd(), common::FILLER_WAITS_AT);
        closer.close();
        assert!(!waiting.join().unwrap());
    }
}

#[test]
fn what_a_caller_must_not_do() {
    fn panics(wrong: impl FnOnce(&mut Filler, &mut Taker, u32)) -> String {
        let (mut filler, mut taker) = slab(2).split();
        let slot = filler.take_free().unwrap();
        let wrong = std::panic::AssertUnwindSafe(|| wrong(&mut filler, &mut taker, slot));
        *std::panic::catch_unwind(wrong).unwrap_err().downcast::<String>().unwrap()
    }
    let not_held = panics(|filler, _, slot| {
        filler.publish(filled(slot, 0));
        filler.publish(filled(slot, 1));
    });
    assert!(not_held.contains("not held"), "{not_held}");
    assert!(panics(|filler, _, slot| filler.put_back(slot ^ 1)).contains("not held"));
    assert!(panics(|filler, _, _| filler.publish(filled(2, 0))).contains("not held: slot=2"));
    assert!(panics(|_, taker, slot| drop(taker.lease(slot))).contains("not taken"));
    assert!(panics(|_, taker, _| drop(taker.lease(99))).contains("not taken"));
    let twice = panics(|filler, taker, slot| {
        filler.publish(filled(slot, 0));
        taker.try_take().unwrap();
        let _first = taker.lease(slot);
        let _second = taker.lease(slot);
    });
    assert!(twice.contains("leased already"), "{twice}");
}

#[test]
fn a_filler_ignores_returns_of_what_is_not_out() {
    let memory = slab(3);
    let (mut filler, mut taker) = memory.clone().split();
    let (held, free) = (filler.take_free().unwrap(), filler.take_free().unwrap());
    filler.put_back(free);
    // All bits, also those of slots that do not exist.
    poke(memory.fd(), common::RETURNED_AT, u64::MAX);
    assert_eq!(filler.free_slots(), 2);
    let others = [filler.take_free().unwrap(), filler.take_free().unwrap()];
    assert!(!others.contains(&held) && others[0] != others[1]);
    assert_eq!((filler.take_free(), filler.stray_returns()), (None, 64));
    filler.publish(filled(held, 5));
    let got = taker.try_take().unwrap();
    drop(taker.lease(got.slot));
    assert_eq!(filler.take_free(), Some(held));
}

#[test]
fn a_taker_stops_at_a_filler_that_breaks_the_rules() {
    // Impossible progress.
    let memory = slab(3);
    let (filler, mut taker) = memory.clone().split();
    poke(memory.fd(), common::PUBLISHED_AT, 4);
    assert_eq!(taker.wait_take(None), Taken::Closed);
    assert_eq!(taker.fault(), Some(Fault::Published { published: 4, taken: 0, slots: 3 }));
    assert!(filler.taker_closed());
    poke(memory.fd(), common::PUBLISHED_AT, 0);
    assert_eq!((taker.try_take(), taker.wait_take(None)), (None, Taken::Closed));

    // A slot that does not exist, then one that is leased: over a descriptor written by hand.
    for (slot, fault) in [(3, Fault::Slot { slot: 3, slots: 3 }), (0, Fault::NotReturned { slot: 0 })] {
        let memory = slab(3);
        let (mut filler, mut taker) = memory.clone().split();
        let held = filler.take_free().unwrap();
        filler.publish(filled(held, 0));
        let first = taker.try_take().unwrap();
        let lease = taker.lease(first.slot);
        let entries_at = common::RETURNED_AT + 128;
        assert_eq!(peek(memory.fd(), entries_at + 16), u64::from(held) | 1 << 32);
        let bad = if slot == 0 { held } else { slot };
        poke(memory.fd(), entries_at + 32 + 16, u64::from(bad));
        poke(memory.fd(), common::PUBLISHED_AT, 2);
        assert_eq!(taker.wait_take(None), Taken::Closed);
        let fault = if slot == 0 { Fault::NotReturned { slot: held } } else { fault };
        assert_eq!(taker.fault(), Some(fault));
        drop(lease);
        assert_eq!(taker.leased(), 0);
    }
}

#[derive(Clone, Debug)]
enum Op {
    TakeFree,
    PutBack(usize),
    Publish(usize),
    Take,
    Drop(usize),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => Just(Op::TakeFree),
        1 => (0usize..100).prop_map(Op::PutBack),
        3 => (0usize..100).prop_map(Op::Publish),
        3 => Just(Op::Take),
        3 => (0usize..100).prop_map(Op::Drop),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Any order of calls: every slot is in exactly one place, and the ring is a queue.
    #[test]
    fn every_slot_is_in_one_place(
        slots in prop_oneof![1u32..9, 60u32..70],
        ops in prop::collection::vec(op(), 1..400),
    ) {
        let (mut filler, mut taker) = slab(slots).split();
        let (mut held, mut queue, mut leases) = (Vec::new(), VecDeque::new(), Vec::<Lease>::new());
        let mut tag = 0;
        for op in ops {
            match op {
                Op::TakeFree => match filler.take_free() {
                    Some(slot) => held.push(slot),
                    None => prop_assert_eq!(held.len() + queue.len() + leases.len(), slots as usize),
                },
                Op::PutBack(any) if !held.is_empty() => filler.put_back(held.swap_remove(any % held.len())),
                Op::Publish(any) if !held.is_empty() => {
                    let sent = filled(held.swap_remove(any % held.len()), tag);
                    tag += 1;
                    filler.publish(sent);
                    queue.push_back(sent);
                }
                Op::Take => {
                    let got = taker.try_take();
                    prop_assert_eq!(got, queue.pop_front());
                    leases.extend(got.map(|got| taker.lease(got.slot)));
                }
                Op::Drop(any) if !leases.is_empty() => drop(leases.swap_remove(any % leases.len())),
                _ => {}
            }
            let mut places: Vec<u32> = held.clone();
            places.extend(queue.iter().map(|filled| filled.slot));
            places.extend(leases.iter().map(Lease::slot));
            places.sort_unstable();
            places.dedup();
            prop_assert_eq!(places.len(), held.len() + queue.len() + leases.len());
            prop_assert_eq!(filler.free_slots() as usize, slots as usize - places.len());
            prop_assert_eq!(taker.leased() as usize, leases.len());
            prop_assert_eq!(filler.ready_slots() as usize, queue.len());
        }
        prop_assert_eq!(filler.stray_returns(), 0);
    }
}
