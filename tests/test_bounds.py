"""docs/explanation/bounds.md against the tests: each of its rows has one that shows what happens at the bound."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from tests.source_tree import ROOT, TESTS
from tests.test_tests import found_in

PAGE = ROOT / "docs" / "explanation" / "bounds.md"

#: What is bounded, in the page's words, and the tests of its bound.
BOUNDS: Mapping[str, list[str]] = MappingProxyType(
    {
        "messages of one peer being handled": ["node/test_throttling.py::test_slots_default_to_the_mode"],
        "messages of all peers being handled": [
            "node/test_throttling.py::test_the_node_has_slots_over_all_peers",
            "node/test_throttling.py::test_the_nodes_slots_are_shared_fairly",
        ],
        "unreleased messages of one redpoll peer": [
            "node/test_throttling.py::test_the_window_bounds_what_is_unreleased"
        ],
        "bytes of unreleased messages of one redpoll peer": [
            "node/test_throttling.py::test_the_window_bounds_bytes",
            "node/test_throttling.py::test_one_message_of_any_size_fits_the_window",
        ],
        "withdrawn messages queued behind a waiting one": [
            "wire/test_slots.py::test_a_withdrawn_message_frees_its_place"
        ],
        "bytes held for all peers together": [
            "wire/test_memory.py::test_at_the_limit_no_large_body_begins",
            "wire/test_memory.py::test_the_one_with_the_most_goes_on",
            "wire/test_memory.py::test_at_the_limit_a_peer_has_the_lookahead_alone",
            "node/test_pressure.py::test_senders_wait_and_go_on",
            "node/test_pressure.py::test_a_full_inbox_drains",
            "node/test_pressure.py::test_what_is_not_read_is_memory",
        ],
        "wait of a message for memory": [
            "wire/test_memory.py::test_what_waits_too_long_is_refused",
            "node/test_pressure.py::test_who_waits_too_long_is_refused",
            "node/test_pressure.py::test_libchirp_that_waits_too_long_is_closed",
        ],
        "stall of the data that fills the memory": [
            "wire/test_memory.py::test_who_holds_most_and_does_not_move_is_named",
            "node/test_pressure.py::test_who_holds_the_memory_and_does_not_move_is_closed",
        ],
        "bytes read from libchirp while the node is full": [
            "node/test_throttling.py::test_a_node_stops_reading_behind_the_lookahead"
        ],
        "messages handed over to pulling threads": [
            "blocking/test_feed.py::test_as_many_as_slots_allow_come_at_once",
            "blocking/test_feed.py::test_a_burst_is_bounded",
        ],
        "wait of handed-over messages for a thread": [
            "blocking/test_feed.py::test_what_nobody_comes_for_goes_back",
            "blocking/test_feed.py::test_what_an_interrupted_thread_had_goes_back",
        ],
        "calls of threads that wait for the loop thread": [
            "blocking/test_handover.py::test_a_sending_thread_waits_for_a_loop_that_is_behind"
        ],
        "data of a redpoll peer beyond its window": [
            "wire/test_slots.py::test_overrun",
            "wire/test_slots.py::test_overrun_over_another_link",
        ],
        "messages queued to one peer": ["node/test_sending.py::test_the_queue_is_bounded_in_messages"],
        "bytes queued to one peer": [
            "node/test_sending.py::test_the_queue_is_bounded_in_bytes",
            "node/test_sending.py::test_the_queue_takes_one_message_of_any_size",
        ],
        "bytes queued to all peers": [
            "wire/test_memory.py::test_queues_keep_within_the_limit",
            "node/test_pressure.py::test_sends_past_the_limit_fail",
        ],
        "messages in flight to one peer": [
            "wire/test_window.py::test_window_in_messages",
            "wire/test_window.py::test_window_in_bytes",
        ],
        "requests to one peer that are released and not answered": [
            "wire/test_peer.py::test_requests_without_an_answer_are_bounded"
        ],
        "ended sends queued behind an open one": [
            "wire/test_peer.py::test_queue_forgets_the_withdrawn",
            "wire/test_peer.py::test_deadlines_keep_little_of_what_ended",
            "wire/test_deadlines.py::test_nothing_is_kept_of_what_ended",
        ],
        "unread answers of a peer": [
            "node/test_handlers.py::test_who_does_not_read_the_answers_is_not_answered_further"
        ],
        "unread acknowledgements and control frames of a peer": [
            "transport/test_write_backpressure.py::test_who_does_not_read_is_closed",
            "transport/test_write_backpressure.py::test_who_does_not_read_a_large_message_is_closed",
            "node/test_handlers.py::test_acknowledgements_behind_a_large_message_are_bounded",
        ],
        "unread TLS responses of a peer": ["transport/test_secure.py::test_who_asks_and_does_not_read"],
        "metadata of one message": ["wire/test_metadata.py::test_largest"],
        "bytes of an incomplete frame": ["wire/test_reader.py::test_what_waits_of_a_frame_is_bounded"],
        "incomplete messages over one link": ["wire/test_partial.py::test_no_more_than_the_window_is_begun"],
        "bytes of incomplete messages, headers included": [
            "wire/test_partial.py::test_begun_messages_keep_to_the_window",
            "wire/test_partial.py::test_headers_count",
        ],
        "incomplete answers over one link to abandoned requests": [
            "wire/test_partial.py::test_unwanted_answers_cost_nothing"
        ],
        "incomplete answers over one link whose peer is not known yet": [
            "wire/test_partial.py::test_answers_before_the_peer_is_known_are_limited"
        ],
        "buffers of large bodies kept for reuse": ["wire/test_assembly.py::test_memory_kept_is_bounded"],
        "lists, dicts and extensions in one message of `msgpack` or `json`": [
            "serializers/test_msgpack.py::test_containers_are_bounded",
            "serializers/test_msgpack.py::test_a_million_by_default",
            "serializers/test_json.py::test_containers_are_bounded",
            "serializers/test_json.py::test_a_million_by_default",
        ],
        "memory of the other values in one": ["serializers/test_msgpack.py::test_the_dearest_values"],
        "nesting of lists and dicts": ["serializers/test_base.py::test_data_that_is_too_deep_is_a_decode_error"],
        "memory of a decoded pickle": [
            "serializers/pickling/test_reading.py::test_attacks_take_little_memory",
            "serializers/pickling/test_reading.py::test_empty_containers_are_the_dearest",
        ],
        "nesting of deques and defaultdicts in a pickle; of arrays of objects": [
            "serializers/pickling/test_nesting.py::test_the_deepest",
            "serializers/pickling/test_nesting.py::test_the_deepest_array",
        ],
        "nesting of tuples in a pickle, above 10,000 values": ["serializers/pickling/test_reading.py::test_attacks"],
        "values that a pickle builds from one that it sent once: copies, dtypes and shapes of NumPy": [
            "serializers/pickling/test_reading.py::test_nothing_is_copied_again_and_again",
            "serializers/pickling/test_reading.py::test_attacks",
        ],
        "dimensions beside the 0 of a NumPy array without items, multiplied": [
            "serializers/pickling/test_arrays.py::test_empty_arrays_are_bounded"
        ],
        "checks of text in NumPy arrays with overlapping fields": [
            "serializers/pickling/test_reading.py::test_attacks"
        ],
        "values in one key of a pickle, and in all keys": [
            "serializers/pickling/test_opcodes.py::test_keys_are_weighed"
        ],
        "digits of a `Fraction` in a pickle": ["serializers/pickling/test_values.py::test_fractions_are_bounded"],
        "messages over a link whose identity must be proven": [
            "node/test_claims.py::test_a_claim_does_not_hold_more_than_a_window"
        ],
        "time to prove an identity": [
            "node/test_claims.py::test_a_stranger_becomes_a_peer_of_its_own",
            "node/test_claims.py::test_who_does_not_answer_leaves_doubt",
        ],
        "time of `authorize`": [
            "node/test_authorization.py::test_no_answer_in_time_is_a_no",
            "node/test_authorization.py::test_a_late_yes_is_a_no",
        ],
        "data of a link during `authorize`": ["node/test_authorization.py::test_what_comes_waits"],
        "data of a libchirp link whose identity must be proven": [
            "node/test_admission.py::test_what_comes_before_it_is_known_whose_it_is"
        ],
        "time that a refused link stays open for the refusal": [
            "node/test_authorization.py::test_what_is_written_to_who_is_not_let_in",
            "node/test_fencing.py::test_a_fenced_run_that_does_not_close_is_closed",
        ],
        "tracebacks of raising handlers": ["node/test_dispatch.py::test_failures_are_logged_once_a_second"],
        "tracebacks of a raising `authorize`": ["node/test_authorization.py::test_an_exception_is_a_no"],
        "cancels over a link whose peer is not known yet": [
            "wire/test_controls.py::test_cancels_before_the_peer_is_known"
        ],
        "session frames of one read": ["wire/test_controls.py::test_session_bodies_are_the_owners"],
        "small frames parsed in a row, messages or not": [
            "wire/test_reader.py::test_the_next_read_of_many_frames_is_short"
        ],
        "unread answers to pings": ["wire/test_controls.py::test_pings_do_not_heap_up"],
        "outcomes remembered for a peer's resends": [
            "wire/test_slots.py::test_a_window_of_outcomes_is_remembered",
            "wire/test_duplicates.py::test_bound",
            "node/test_recent_peers.py::test_two_windows_of_outcomes_are_enough",
        ],
        "texts of refusals among these": ["wire/test_duplicates.py::test_texts_are_bounded"],
        "messages resent over another link while the link of the first attempt is still read": [
            "wire/test_slots.py::test_a_link_that_all_was_sent_again_of_is_closed"
        ],
        "time that a peer is remembered after its last link": [
            "node/test_recent_peers.py::test_a_peer_is_remembered_for_its_time",
            "node/test_recent_peers.py::test_a_session_makes_it_longer",
            "wire/test_session.py::test_the_other_end_has_forgotten",
        ],
        "peers remembered after their last link": [
            "node/test_recent_peers.py::test_the_longest_absent_go_first",
            "node/test_recent_peers.py::test_a_host_drives_out_its_own",
            "node/test_recent_peers.py::test_strangers_do_not_drive_out_sessions",
        ],
        "memory of remembered peers": [
            "node/test_recent_peers.py::test_bytes_are_bounded_in_all",
            "node/test_recent_peers.py::test_the_text_of_refusals_counts",
        ],
        "wait of messages for a lost link": [
            "node/test_sessions.py::test_its_time_ends_it",
            "test_config.py::test_a_session_lasts_a_day_at_most",
        ],
        "attempts to dial a peer that is down": [
            "transport/test_backoff.py::test_a_listener_that_is_back_is_found_soon",
            "node/test_dialler.py::test_what_is_new_shortens_a_long_pause",
        ],
        "peers whose sessions wait for a link": [
            "node/test_sessions.py::test_sessions_without_a_link_are_bounded",
            "node/test_sessions.py::test_sessions_of_one_host_are_bounded",
            "node/test_sessions.py::test_strangers_end_no_session",
        ],
        "time to show the secret that a link announced": [
            "node/test_sessions.py::test_a_secret_that_never_comes_holds_nothing_up"
        ],
        "fenced runs of a peer's node": ["wire/test_session.py::test_runs_that_lost_their_place_are_bounded"],
        "addresses where another run of this node took over": [
            "node/test_sessions.py::test_places_where_it_was_fenced_are_bounded"
        ],
        "abandoned requests to libchirp whose answers may still arrive": [
            "wire/test_requests.py::test_given_up",
            "wire/test_libchirp.py::test_answers_to_what_was_given_up",
        ],
        "size of one message": [
            "node/test_sending.py::test_a_message_above_the_own_limit_is_refused_at_once",
            "transport/test_connection.py::test_a_message_that_is_too_large",
            "wire/test_bodies.py::test_largest_message",
        ],
        "size of a header": ["test_message.py::test_a_header_has_its_longest_size"],
        "links in total": [
            "node/test_peers.py::test_connections_are_bounded",
            "node/test_peers.py::test_connections_count_from_the_moment_they_are_accepted",
        ],
        "links from one host": ["node/test_peers.py::test_connections_from_one_host_are_bounded"],
        "disconnected peers with messages here": [
            "node/test_connection_limits.py::test_strangers_that_leave_messages_do_not_add_up",
            "node/test_connection_limits.py::test_strangers_whose_messages_are_pulled",
        ],
        "connections not yet accepted": ["node/test_start.py::test_backlog_holds_what_is_not_accepted"],
        "cached addresses parsed from text": ["test_address.py::test_parse_remembers_a_few_thousand"],
        "handshake of an accepted link": ["transport/test_connection.py::test_handshake_timeout_of_who_comes_in"],
        "TLS handshake of an accepted link": ["node/test_encryption.py::test_handshake_timeout_covers_tls"],
        "log lines about rejected connections": [
            "node/test_encryption.py::test_the_log_is_not_flooded",
            "node/test_rejected.py::test_many_strangers_are_told_of_in_one_line",
        ],
        "time of a name lookup, and of connecting to each address": [
            "node/test_dialler.py::test_connect_timeout",
            "node/test_dialler.py::test_connect_timeout_covers_looking_a_name_up",
        ],
        "time of a message": [
            "node/test_deadlines.py::test_an_unset_timeout_is_the_configs",
            "node/test_deadlines.py::test_a_timeout_covers_dialling",
            "node/test_deadlines.py::test_a_timeout_covers_the_queue",
            "node/test_deadlines.py::test_a_timeout_covers_the_work",
        ],
        "wait behind a cancelled message to libchirp": [
            "wire/test_libchirp.py::test_plain_cancelled",
            "wire/test_libchirp.py::test_plain_cancelled_without_a_deadline",
        ],
        "time until libchirp reads an unacknowledged message": [
            "wire/test_libchirp.py::test_plain_unread_closes_the_link",
            "wire/test_libchirp.py::test_plain_unread_and_given_up_without_a_deadline",
            "node/test_drain.py::test_libchirp_that_reads_nothing_holds_up_no_stop",
        ],
        "rate at which the last bytes of a closing link are read": [
            "transport/test_connection.py::test_who_reads_nothing_holds_up_no_close",
            "transport/test_connection.py::test_who_reads_on_gets_all_before_a_close",
        ],
        "rate at which a message arrives": [
            "wire/test_stall_detector.py::test_a_link_that_brings_a_byte_a_second_is_lost",
            "node/test_pressure.py::test_slow_senders_are_closed_and_counted",
        ],
        "wait of a message for a consumer": ["node/test_pulling.py::test_what_nobody_takes_is_refused"],
        "idle time of a link": ["transport/test_connection.py::test_an_idle_link_is_closed_and_made_again"],
        "silence of a redpoll peer": ["transport/test_liveness.py::test_a_frozen_peer_is_suspect_and_then_lost"],
        "unconfirmed puts of the queue facade to one peer": [
            "nq/test_limits.py::test_puts_that_nobody_takes",
            "nq/test_limits.py::test_puts_that_are_dropped",
            "nq/conformance/test_limits.py::test_putting_waits_for_room",
            "nq/core/test_comm.py::test_threads_that_wait_keep_to_the_bound",
        ],
        "messages of one peer in the queue facade that were not got": [
            "nq/test_limits.py::test_messages_that_nobody_gets",
            "nq/test_limits.py::test_messages_that_are_dropped",
            "nq/test_limits.py::test_a_full_queue_says_which",
        ],
        "bytes of either": [
            "nq/test_limits.py::test_bytes_that_nobody_takes",
            "nq/test_limits.py::test_bytes_that_nobody_gets",
        ],
        "of these, messages that are confirmed when they are got": ["nq/test_limits.py::test_messages_that_are_held"],
        "disconnected clients of a queue facade that may reconnect within `resume` seconds": [
            "nq/test_limits.py::test_clients_that_may_come_back"
        ],
        "closed clients of a queue facade with messages that were not got": [
            "nq/core/test_server.py::test_clients_that_are_gone_and_have_left_something"
        ],
        "events of a queue facade not yet called": ["nq/core/test_events.py::test_slow_events_do_not_heap_up"],
        "size of one put": ["nq/test_limits.py::test_a_message_that_is_too_large"],
        "withdrawn puts queued behind an open one": ["nq/test_limits.py::test_puts_that_were_taken_back"],
        "names of one client of a directory": [
            "wiring/directory/test_table.py::test_entries_are_bounded",
            "wiring/directory/test_desired.py::test_wishes_are_bounded",
            "wiring/directory/test_client.py::test_bounds",
        ],
        "names that one client of a directory watches": [
            "wiring/directory/test_table.py::test_watches_are_bounded",
            "wiring/directory/test_desired.py::test_wishes_are_bounded",
            "wiring/directory/test_client.py::test_a_watch_for_which_there_was_no_room",
            "wiring/test_many.py::test_more_names_than_are_watched",
        ],
        "names of all clients of a directory, and names that they watch": [
            "wiring/directory/test_table.py::test_entries_are_bounded",
            "wiring/directory/test_table.py::test_watches_are_bounded",
        ],
        "time that a directory reserves the names of a disconnected owner": [
            "wiring/directory/test_table.py::test_a_lost_link_makes_suspect",
            "wiring/directory/test_server.py::test_a_lost_link_is_seen_at_once",
            "wiring/directory/test_server.py::test_silence_is_found",
        ],
        "names released in a directory's first lease": [
            "wiring/directory/test_table.py::test_a_name_that_is_given_up_in_the_first_lease"
        ],
        "unread news of a directory's client": [
            "wiring/directory/test_table.py::test_news_are_bounded",
            "wiring/directory/test_server.py::test_who_does_not_listen_is_told_the_latest",
        ],
        "names in one message to a directory": [
            "wiring/directory/test_protocol.py::test_what_is_none_of_it",
            "wiring/directory/test_server.py::test_too_many_names_at_once",
        ],
        "size of a message to a directory": ["wiring/directory/test_server.py::test_a_message_that_is_too_large"],
        "bytes that a directory holds for all clients": [
            "wiring/directory/test_server.py::test_strangers_fill_no_memory"
        ],
        "items in the description of an owner": ["cli/test_wiring_view.py::test_what_is_said_at_great_length"],
        "log lines about clients without a directory's token": [
            "wiring/directory/test_server.py::test_who_shows_no_token_does_not_fill_the_log"
        ],
        "messages and bytes waiting at an exchange, for each pipe": [
            "wiring/test_exchange.py::test_waits",
            "wiring/test_exchange.py::test_refuses",
            "wiring/test_exchange.py::test_drops",
            "wiring/test_exchange.py::test_exact_bytes",
        ],
        "messages and bytes waiting in a queue, for each pipe": [
            "wiring/test_queue.py::test_not_received",
            "wiring/test_receiver.py::test_overrun",
            "wiring/test_network.py::test_misbehaves",
        ],
        "pipes of one other wiring to the queues of this one": [
            "wiring/test_incoming.py::test_too_many",
        ],
        "unknown pipes that another wiring is told of": [
            "wiring/test_network.py::test_pipes_that_are_not_known",
        ],
        "queues that one other wiring has bound to the exchanges of this one": [
            "wiring/test_bindings.py::test_too_many",
        ],
        "bindings being wired with one other wiring at a time": [
            "wiring/test_many.py::test_wired_in_turn",
        ],
        "time that a binding is kept after the wiring that requested it is gone": [
            "wiring/test_bindings.py::test_binder_stays_away",
        ],
        "time that a queue keeps a pipe whose exchange is gone": [
            "wiring/test_incoming.py::test_given_up",
        ],
        "size of control messages between wirings": [
            "wiring/test_words_of_wirings.py::test_no_word",
        ],
        "size of the name of an exchange or a queue": [
            "wiring/test_names.py::test_bad",
        ],
        "data in transit to one end of a link over MQTT": [
            "nq/mqtt/test_survival.py::test_who_does_not_read_holds_up_its_writer_alone",
            "nq/mqtt/test_mux.py::test_no_more_goes_out_than_is_allowed",
            "nq/mqtt/test_mux.py::test_who_sends_more_than_is_allowed_is_ended",
            "nq/mqtt/test_mux.py::test_many_links_share_what_may_be_under_way",
        ],
        "answers over MQTT to unknown clients, while the broker accepts none": [
            "nq/mqtt/test_mux.py::test_strangers_are_not_answered_without_end"
        ],
        "messages of one exchange handed over from threads to the loop": [
            "wiring/zmq/test_outbox.py::test_no_more_than_there_is_room_for",
            "wiring/zmq/test_outbox.py::test_a_burst_is_bounded",
        ],
        "large messages among them": ["wiring/zmq/test_outbox.py::test_large_messages_are_bounded_by_their_bytes"],
        "messages handed over from queues to threads": [
            "wiring/zmq/test_bursts_for_threads.py::test_a_burst_at_a_time"
        ],
        "tasks in a queue of the bus": [
            "bus/broker/test_intake.py::test_a_full_queue_lets_wait",
            "bus/broker/test_intake.py::test_the_oldest_is_dropped",
        ],
        "bytes in a queue of the bus": ["bus/broker/test_intake.py::test_bytes_are_bounded_but_one_always_fits"],
        "tasks of a chain or a group": ["bus/tasks/test_chains.py::test_what_is_submitted_together_is_bounded"],
        "results that tasks of chains are to be given": [
            "bus/broker/test_steps.py::test_results_count_against_the_queue_of_what_they_are_for",
            "bus/broker/test_steps.py::test_results_are_held_beyond_their_limits",
        ],
        "publishes that wait for room in a queue": ["bus/broker/test_intake.py::test_waiting_is_bounded"],
        "dead letters beside a queue": ["bus/broker/test_tasks.py::test_dead_letters_are_bounded"],
        "dead letters in the queue that is named for them": [
            "bus/broker/test_tasks.py::test_a_queue_of_dead_letters_has_its_limits"
        ],
        "progress and submitters' messages on the way to another event loop of the process": [
            "bus/engines/memory/test_room.py::test_a_slow_loop_drops_progress"
        ],
        "lines of the history of a task": ["bus/broker/test_tasks.py::test_the_history_is_bounded"],
        "deduplication keys of tasks": [
            "bus/broker/test_kept.py::test_a_key_counts_for_its_time",
            "bus/broker/test_kept.py::test_the_oldest_key_leaves_first",
        ],
        "outcomes of tasks": [
            "bus/broker/test_kept.py::test_an_outcome_is_kept_for_its_time",
            "bus/broker/test_kept.py::test_the_oldest_outcomes_leave_at_the_bound",
        ],
        "watchers of a task, live subscriptions": [
            "bus/broker/test_intake.py::test_watchers_and_subscriptions_are_bounded"
        ],
        "queues of a broker": ["bus/broker/test_queues.py::test_queues_are_bounded"],
        "last broadcasts that are kept": [
            "bus/broker/test_kept.py::test_the_last_ones_are_kept",
            "bus/broker/test_kept.py::test_the_subject_that_was_used_least_recently_leaves",
        ],
        "messages for the watchers of a disconnected bus": ["bus/broker/test_peers.py::test_an_inbox_is_bounded"],
        "bytes from a client of a hub before its hello": ["bus/engines/hub/test_tokens.py::test_strangers"],
        "time of a client of a hub to announce itself, and to say hello": [
            "bus/engines/hub/test_tokens.py::test_strangers",
            "bus/engines/hub/test_server.py::test_a_handshake_alone_is_no_client",
        ],
        "unread answers of a client of a hub": [
            "bus/engines/hub/test_hub.py::test_who_does_not_read_is_not_read",
            "bus/engines/hub/test_server.py::test_answers_of_one_message_are_bounded",
        ],
        "tasks waiting to be sent to a client of a hub": [
            "bus/engines/hub/test_server.py::test_tasks_of_a_client_that_does_not_read_are_bounded"
        ],
        "bytes of messages for a RabbitMQ that is away or reads nothing, and of those that it has not confirmed": [
            "bus/engines/amqp/test_pitfalls_publishing.py::test_16_what_waits_is_bounded",
            "bus/engines/amqp/test_pitfalls_publishing.py::test_20_a_server_that_does_not_read",
        ],
        "changes of queues that the list of queues at RabbitMQ does not take": [
            "bus/engines/amqp/test_catalogue.py::test_records_that_wait"
        ],
        "wait for a hub that is away or frozen, of operations without a timeout": [
            "bus/engines/hub/test_recovery.py::test_operations_wait_for_an_absent_hub_with_a_limit",
            "bus/engines/hub/test_recovery.py::test_operations_at_a_hub_that_is_frozen_end",
        ],
        "calls of a client of a hub that are carried out at a time": [
            "bus/engines/hub/test_server.py::test_calls_that_take_a_while_are_bounded"
        ],
        "bytes of tasks and outcomes that wait for the disk of a hub": [
            "bus/engines/hub/test_disk.py::test_room_for_what_waits",
            "bus/engines/hub/test_server.py::test_a_burst_without_room_on_the_disk",
        ],
        "stored outcomes that a hub reads at a time for clients that wait for them": [
            "bus/engines/hub/test_server.py::test_many_watches_of_stored_outcomes"
        ],
        "consumers of one client of a hub": ["bus/engines/hub/test_hub.py::test_consumers_are_bounded"],
        "tasks in one answer to `browse` from a hub": ["bus/engines/hub/test_hub.py::test_browsing_is_bounded"],
        "schedules of a broker": ["bus/broker/test_schedules.py::test_what_cannot_be"],
        "subjects whose receivers are cached": ["bus/broker/test_topics.py::test_what_is_remembered_is_bounded"],
        "broadcasts that wait for an iteration or a coroutine function": [
            "bus/test_feed.py::test_the_oldest_is_pushed_out"
        ],
        "progress of a task that waits for an iteration over `watch()`": [
            "bus/tasks/test_handle.py::test_slow_iterators_lose_the_oldest"
        ],
        "progress of a handler in a thread or a process that waits for the loop": [
            "bus/tasks/test_pools.py::test_progress_of_a_thread_is_bounded"
        ],
        "time of a worker's process to start": [
            "bus/tasks/test_processes.py::test_a_process_that_does_not_start_is_ended"
        ],
        "handlers that a worker runs at a time": ["bus/tasks/test_worker.py::test_concurrency_is_the_credit"],
        "short tasks that a hub sends to a worker before they have a slot": [
            "bus/engines/hub/test_pace.py::test_short_handlers_have_tasks_ahead"
        ],
        "callbacks of broadcasts that a bus for threads runs at a time": [
            "bus/threads/test_broadcast.py::test_so_many_callbacks_are_called_at_a_time"
        ],
        "callbacks of progress and state waiting in a bus for threads": [
            "bus/threads/test_tasks.py::test_callbacks_that_wait_are_bounded"
        ],
        "broadcasts on the way to one event loop of a process": [
            "bus/engines/memory/test_room.py::test_a_fast_publisher_of_events_waits",
            "bus/engines/memory/test_room.py::test_a_slow_loop_drops_events",
        ],
        "calls that a server has at a time": ["bus/rpc/test_server.py::test_so_many_calls_are_done_at_a_time"],
        "fanout messages that wait in one server": [
            "bus/rpc/test_server.py::test_the_oldest_messages_to_all_are_dropped"
        ],
        "parts of a streamed answer in flight": [
            "bus/rpc/test_replies.py::test_the_caller_sets_the_pace",
            "bus/rpc/test_replies.py::test_a_lost_part_is_seen",
        ],
        "methods with call statistics": ["bus/rpc/test_caller.py::test_ways_are_bounded"],
        "notifications from other threads that wait to be sent": [
            "bus/notifications/test_producers.py::test_posting_waits_for_nobody",
            "bus/notifications/test_notifier.py::test_what_is_posted_is_bounded",
        ],
        "size of a compressed notification when it is read": [
            "bus/notifications/test_records.py::test_what_is_no_notification_is_refused"
        ],
    }
)


def test_every_row_has_its_tests() -> None:
    """No row of the page is without a test, and no test is named for a row that is not there."""
    _, _, *rows = re.findall(r"^\| (.+?) \|", PAGE.read_text().replace("|---|", "| - |"), re.MULTILINE)
    assert rows == list(BOUNDS)


def test_the_tests_are_there() -> None:
    """Each test that is named for a row exists."""
    named = [test.split("::") for tests in BOUNDS.values() for test in tests]
    assert not [f"{path}::{name}" for path, name in named if name not in found_in(TESTS / path)]
