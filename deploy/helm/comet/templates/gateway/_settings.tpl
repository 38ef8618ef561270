{{/* The gateways' settings file. */}}
{{- define "comet.gatewaySettings" -}}
{{- $settings := deepCopy .Values.gateway.settings -}}
{{- $own := dict "bootstrap" (include "comet.bootstrap" .) "host" "0.0.0.0" "port" 8080 -}}
{{- $hosts := default list $settings.hosts -}}
{{- $_ := set $own "hosts" (concat $hosts (include "comet.gatewayHosts" . | fromJsonArray) | uniq) -}}
{{- if .Values.gateway.tls.enabled -}}
{{- $_ := set $own "tls_cert" "/etc/comet/https/tls.crt" -}}
{{- $_ := set $own "tls_key" "/etc/comet/https/tls.key" -}}
{{- end -}}
{{- $defaults := dict "drain_notice_s" 10 "cluster_name" .Values.cluster "log_format" "json" -}}
{{- if and .Values.gateway.secret (not $settings.oidc_issuer) -}}
{{- $_ := set $defaults "tokens_file" "/etc/comet/secrets/tokens.toml" -}}
{{- end -}}
{{- include "comet.toml" (merge $own $settings $defaults) -}}
{{- end -}}

{{/* The names under which the gateways are reached, as a JSON list. */}}
{{- define "comet.gatewayHosts" -}}
{{- $name := printf "%s-gateway" (include "comet.fullname" .) -}}
{{- $hosts := list $name (printf "%s.%s" $name .Release.Namespace) (printf "%s.%s.svc" $name .Release.Namespace) (printf "%s.%s" $name (include "comet.namespaceDomain" .)) -}}
{{- if .Values.gateway.ingress.enabled -}}{{- $hosts = concat $hosts .Values.gateway.ingress.hosts -}}{{- end -}}
{{- if .Values.gateway.httpRoute.enabled -}}{{- $hosts = concat $hosts .Values.gateway.httpRoute.hostnames -}}{{- end -}}
{{- toJson (uniq $hosts) -}}
{{- end -}}
