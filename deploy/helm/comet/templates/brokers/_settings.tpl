{{/* The brokers' settings file, the same for all of them; what differs is in the environment. */}}
{{- define "comet.brokerSettings" -}}
{{- $settings := deepCopy .Values.brokers.settings -}}
{{- $own := dict "data" "/data/comet" "host" "0.0.0.0" "port" 9092 "wire_port" 9192 "metrics_port" 9095 "cluster" .Values.cluster -}}
{{- if include "comet.hasTls" . -}}
{{- $_ := set $own "brokers_port" 9093 -}}
{{- $_ := set $own "brokers_wire_port" 9193 -}}
{{- $_ := set $own "brokers_ca" "/etc/comet/tls/ca.pem" -}}
{{- if not (include "comet.takesCredentials" .) -}}
{{- $_ := set $own "clients_ca" "/etc/comet/tls/ca.pem" -}}
{{- end -}}
{{- with .Values.superusers -}}{{- $_ := set $own "superusers" . -}}{{- end -}}
{{- if .Values.superusers -}}{{- with .Values.gateways -}}{{- $_ := set $own "gateways" . -}}{{- end -}}{{- end -}}
{{- else -}}
{{- $_ := set $own "insecure" true -}}
{{- end -}}
{{- if include "comet.hasEtcd" . -}}
{{- $_ := set $own "etcd" (include "comet.etcdEndpoints" . | fromJsonArray) -}}
{{- if include "comet.etcdClientSecret" . -}}
{{- $_ := set $own "etcd_ca" "/etc/comet/etcd/ca.crt" -}}
{{- if .Values.etcd.enabled -}}
{{- $_ := set $own "etcd_cert" "/etc/comet/etcd/tls.crt" -}}
{{- $_ := set $own "etcd_key" "/etc/comet/etcd/tls.key" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $defaults := dict "default_replicas" (min 3 (int .Values.brokers.replicas)) "log_format" "json" -}}
{{- include "comet.toml" (merge $own $settings $defaults) -}}
{{- end -}}

{{- define "comet.etcdEndpoints" -}}
{{- if .Values.etcd.enabled -}}
{{- $members := list -}}
{{- range $index := until (int .Values.etcd.replicas) -}}
{{- $members = append $members (printf "%s-etcd-%d.%s-etcd.%s:2379" (include "comet.fullname" $) $index (include "comet.fullname" $) (include "comet.namespaceDomain" $)) -}}
{{- end -}}
{{- toJson $members -}}
{{- else -}}
{{- toJson .Values.etcd.endpoints -}}
{{- end -}}
{{- end -}}
