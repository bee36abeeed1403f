//! What later tests take for granted about a database: it keeps what it acknowledged, on the same port, through every death.

use test_support::mariadb::MariaDb;
use test_support::require;

#[test]
fn rows_survive_kill_9_and_restart() {
    let mut database = require!(MariaDb::start(&["--innodb-buffer-pool-size=32M"]));
    database.sql("CREATE TABLE t (id BIGINT UNSIGNED PRIMARY KEY, name VARCHAR(50)) ENGINE=InnoDB");
    database.sql("INSERT INTO t VALUES (18446744073709551615, 'größte'), (1, 'one')");
    let port = database.port();

    database.server().kill();
    assert!(!database.server().is_running());
    database.server().start_again().expect("it starts on the same data");

    assert_eq!(database.sql("SELECT * FROM t ORDER BY id"), "1\tone\n18446744073709551615\tgrößte\n");
    assert_eq!(database.port(), port);
    assert_eq!(database.url(), format!("mysql://root@127.0.0.1:{port}/test"));
    assert_eq!(database.sql("SELECT @@binlog_format, @@innodb_buffer_pool_size"), "ROW\t33554432\n");
    assert!(database.server().stop().is_some_and(|status| status.success()), "a clean stop");
}
