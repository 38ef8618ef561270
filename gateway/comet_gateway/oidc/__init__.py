"""Login by OpenID Connect: the authorization code flow with PKCE, at one identity provider."""
