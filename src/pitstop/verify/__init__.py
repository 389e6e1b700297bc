"""Is a server right, fast enough, and still so after hours? Four tiers against any OpenAI-compatible server over HTTP, and one verdict."""
