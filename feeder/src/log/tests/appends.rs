use std::sync::Arc;

use arrow_buffer::Buffer;

use super::super::*;
use crate::rows::Rows;
use crate::schema::Schema;

#[test]
fn first() {
    let dir = tempfile::tempdir().unwrap();
    let root = Root::create(dir.path()).unwrap();
    let schema = Schema::parse("id:int64, x:uint16[2x3]").unwrap();
    let topic = root.create_topic(&"a".parse().unwrap(), &schema, &TopicOptions::default()).unwrap();
    let writer = topic.writer(0, WriterOptions::default()).unwrap();
    let schema = Arc::new(schema);
    let rows = Rows::new(
        schema.clone(),
        10,
        vec![Buffer::from_vec((0..10i64).collect::<Vec<_>>()), Buffer::from_vec((0..60u16).collect::<Vec<_>>())],
    )
    .unwrap();
    for n in 0..5 {
        assert_eq!(writer.append(&rows).unwrap(), n * 10..n * 10 + 10);
        let view = topic.view().unwrap();
        assert_eq!(view.rows(), n * 10 + 10);
    }
    let view = topic.view().unwrap();
    let back = view.partitions[0].read(7..33).unwrap();
    writer.seal().unwrap();
    let again = topic.view().unwrap().partitions[0].read(7..33).unwrap();
    assert_eq!(back.column(0), again.column(0));
    assert_eq!(back.column(1), again.column(1));
    assert!(topic.verify(&mut |_| {}).unwrap().is_good());
}
