INSERT INTO subscriptions VALUES ('billing', '["orders", "payments"]', NULL, 'queue', NULL, -1, 30000, 5, 0, 600000, NULL, FALSE, 1000, NULL, 'earliest', FALSE, 1700000000000, 1, 'at-least-once', '{"0123456789abcdef0123456789abcdef": {"0": 5, "11": 7}}');
INSERT INTO subscriptions VALUES ('hook', '[]', 'orders-.*', 'stream', 'key == "ü"', 1209600000, 60000, 20, 1000, 60000, 'lost', TRUE, 7, 1000000000000, 'by_duration:PT1H', TRUE, 1700000000001, 2, 'at-most-once', NULL);
INSERT INTO endpoints VALUES ('hook', 'https://example.org/hook', 'whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA', 10, TRUE, 5000, '[["x-team", "a b"]]', TRUE);
UPDATE catalog_state SET revision = 2;
