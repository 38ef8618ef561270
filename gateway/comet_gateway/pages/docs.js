// Starts the page of the API. In a file of its own, because the page allows no script inside it.
SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#api",
  deepLinking: true,
  displayRequestDuration: true,
  docExpansion: "list",
  presets: [SwaggerUIBundle.presets.apis],
  layout: "BaseLayout",
  validatorUrl: null,
  // Who tries something out here is who the token says that was put in above, not who is logged in to the dashboard.
  requestInterceptor: (request) => {
    request.credentials = "omit";
    return request;
  },
});
