use std::sync::Arc; use std::time::{Duration,Instant};
use arrow_buffer::Buffer; use feeder::engine::*; use feeder::log::*; use feeder::*;
fn main(){
  let args: Vec<String>=std::env::args().collect();
  let root=std::path::PathBuf::from(&args[1]); let name="a".parse().unwrap();
  if !root.join("forebay.json").exists(){
    let schema=Schema::parse("tokens:uint16[2048], id:int64").unwrap();
    let topic=Root::create(&root).unwrap().create_topic(&name,&schema,&TopicOptions::default()).unwrap();
    let w=topic.writer(0,WriterOptions{fsync:Fsync::Never,..Default::default()}).unwrap();
    let t=Instant::now();
    for k in 0..200u64{ let ids: Vec<i64>=(k as i64*1000..k as i64*1000+1000).collect();
      let x: Vec<u16>=ids.iter().flat_map(|&i|(0..2048).map(move |j| (i as u16).wrapping_add(j))).collect();
      w.append(&Rows::new(topic.schema().clone(),1000,vec![Buffer::from_vec(x),Buffer::from_vec(ids)]).unwrap()).unwrap(); }
    w.seal().unwrap(); w.close().unwrap(); println!("wrote in {:?}",t.elapsed());
    // warm in order
  }
  let get=|k:&str,d:u32|->u32{args.iter().position(|a|a==k).map(|i|args[i+1].parse().unwrap()).unwrap_or(d)};
  let shuffle=args.iter().any(|a|a=="shuf");
  let mut s=Settings{global_batch:256,shuffle,seed:7,..Default::default()};
  if get("L",0)>0 {s.lanes=Some(get("L",0));} if get("c",0)>0 {s.chunk=Some(get("c",0));} if get("G",0)>0 {s.pool=Some(get("G",0));}
  if get("t",0)>0 {s.reader_threads=Some(get("t",0) as usize);} 
  if args.iter().any(|a|a=="preadv"){s.reader=reader::ReaderKind::Preadv;}
  if args.iter().any(|a|a=="nocheck"){s.checksum=Checksum::Off;}
  let epochs=get("e",1);
  let t0=Instant::now();
  let mut l=Loader::open(&root,&name,s).unwrap();
  for _ in 0..epochs{
  let t=Instant::now(); l.begin().unwrap();
  let mut first=None; let mut n=0u64; let mut sum=0u64;
  loop{ match l.poll_next(Duration::from_secs(10)).unwrap(){ Step::Batch(b)=>{ first.get_or_insert(t.elapsed()); n+=b.rows as u64; let c=&b.columns[0]; 
     let p=std::ptr::with_exposed_provenance::<u8>(c.address); for r in 0..b.rows as usize { sum=sum.wrapping_add(unsafe{*(p.add(r*4096) as *const u64)}); } }, Step::End=>break, Step::Pending=>panic!() } }
  let el=t.elapsed(); println!("{:.2} GB/s  first {:?} total {:?} n {} {}", n as f64*4104.0/el.as_secs_f64()/1e9, first.unwrap(), el, n, sum&1);
  }
  println!("{:?} {:?} since open {:?}", l.key(), l.stats(), t0.elapsed());
  for n in l.take_notices(){println!("{n}");}
}
