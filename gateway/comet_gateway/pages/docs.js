// Starts the API's page. In a file of its own, because the page's policy allows no inline script.
SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#api",
  deepLinking: true,
  displayRequestDuration: true,
  docExpansion: "list",
  presets: [SwaggerUIBundle.presets.apis],
  layout: "BaseLayout",
  validatorUrl: null,
  // "Try it out" authenticates with the token entered above, not with the dashboard's session.
  requestInterceptor: (request) => {
    request.credentials = "omit";
    return request;
  },
});
