"""The engines that come with redpoll, each imported when a URL names it."""
