"""Between a policy that maps tokens to tokens and a world that speaks messages: templates, actions, episodes."""
