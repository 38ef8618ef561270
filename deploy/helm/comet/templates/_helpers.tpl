{{/* The names of a release's objects. */}}
{{- define "comet.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What selects the pods of a component: never changes. Takes a dict with root and component. */}}
{{- define "comet.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride | trunc 63 }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "comet.labels" -}}
{{ include "comet.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/part-of: comet
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | trunc 63 }}
{{- end -}}

{{- define "comet.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "comet.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* An image. Takes a dict with image and the default tag. */}}
{{- define "comet.image" -}}
{{- if .image.digest -}}
{{- printf "%s@%s" .image.repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" .image.repository (default .tag .image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "comet.namespaceDomain" -}}
{{- printf "%s.svc.%s" .Release.Namespace .Values.clusterDomain -}}
{{- end -}}

{{/* The brokers' address for clients in the Kubernetes cluster. */}}
{{- define "comet.bootstrap" -}}
{{- printf "%s.%s:9092" (include "comet.fullname" .) (include "comet.namespaceDomain" .) -}}
{{- end -}}

{{- define "comet.hasTls" -}}
{{- if ne .Values.tls.source "none" }}true{{ end -}}
{{- end -}}

{{- define "comet.hasEtcd" -}}
{{- if or .Values.etcd.enabled .Values.etcd.endpoints }}true{{ end -}}
{{- end -}}

{{/* Whether etcd's own members have TLS. */}}
{{- define "comet.etcdMembersTls" -}}
{{- if and .Values.etcd.enabled (or (eq .Values.tls.source "cert-manager") .Values.etcd.memberSecret) }}true{{ end -}}
{{- end -}}

{{- define "comet.etcdClientSecret" -}}
{{- if .Values.etcd.clientSecret -}}
{{- .Values.etcd.clientSecret -}}
{{- else if and .Values.etcd.enabled (eq .Values.tls.source "cert-manager") -}}
{{- printf "%s-etcd-client" (include "comet.fullname" .) -}}
{{- end -}}
{{- end -}}

{{/* Values that contradict each other, found before anything is installed. */}}
{{- define "comet.check" -}}
{{- $brokers := .Values.brokers -}}
{{- if and (gt (int $brokers.replicas) 1) (not (include "comet.hasEtcd" .)) -}}
{{- fail "more than one broker needs etcd: set etcd.enabled or etcd.endpoints" -}}
{{- end -}}
{{- if and .Values.etcd.enabled .Values.etcd.endpoints -}}
{{- fail "etcd.enabled makes an etcd, etcd.endpoints names another one: choose one of them" -}}
{{- end -}}
{{- if and (eq .Values.tls.source "secret") (not .Values.tls.secret) -}}
{{- fail "tls.source: secret needs tls.secret, a Secret with the files that `comet security init` makes" -}}
{{- end -}}
{{- if and (eq .Values.tls.source "cert-manager") (gt (int $brokers.replicas) (int .Values.tls.certManager.brokersMax)) -}}
{{- fail "brokers.replicas is larger than tls.certManager.brokersMax: brokers without a certificate would not start" -}}
{{- end -}}
{{- if and .Values.etcd.enabled (eq .Values.tls.source "secret") .Values.etcd.memberSecret (not .Values.etcd.clientSecret) -}}
{{- fail "etcd.memberSecret needs etcd.clientSecret, with which brokers connect" -}}
{{- end -}}
{{- if and .Values.monitoring.enabled (include "comet.hasTls" .) (not .Values.monitoring.brokerTokenSecret) -}}
{{- fail "monitoring.enabled needs monitoring.brokerTokenSecret: brokers show metrics to callers with the token only" -}}
{{- end -}}
{{- if .Values.gateway.enabled -}}{{ include "comet.checkGateway" . }}{{- end -}}
{{- end -}}

{{- define "comet.checkGateway" -}}
{{- $gateway := .Values.gateway -}}
{{- if not (or $gateway.secret $gateway.settings.oidc_issuer) -}}
{{- fail "gateway.enabled needs users: gateway.secret with tokens.toml (comet gateway token), or gateway.settings.oidc_issuer" -}}
{{- end -}}
{{- if and (not $gateway.tls.enabled) (not $gateway.settings.proxies) -}}
{{- fail "without gateway.tls.enabled, TLS must end at a proxy: set gateway.settings.proxies to its addresses" -}}
{{- end -}}
{{- if and $gateway.tls.enabled (not $gateway.tls.secret) (ne .Values.tls.source "cert-manager") -}}
{{- fail "gateway.tls.enabled needs gateway.tls.secret, a Secret with tls.crt and tls.key" -}}
{{- end -}}
{{- if and $gateway.ingress.enabled (not $gateway.ingress.hosts) -}}
{{- fail "gateway.ingress.enabled needs gateway.ingress.hosts" -}}
{{- end -}}
{{- if and $gateway.httpRoute.enabled (not (and $gateway.httpRoute.hostnames $gateway.httpRoute.parentRefs)) -}}
{{- fail "gateway.httpRoute.enabled needs gateway.httpRoute.parentRefs and gateway.httpRoute.hostnames" -}}
{{- end -}}
{{- if and .Values.monitoring.enabled (not .Values.monitoring.gatewayTokenSecret) -}}
{{- fail "monitoring.enabled with a gateway needs monitoring.gatewayTokenSecret, with the token of a viewer" -}}
{{- end -}}
{{- end -}}

{{/* Settings as TOML, sorted by name. JSON's texts, numbers, switches and lists are TOML's as well. */}}
{{- define "comet.toml" -}}
{{- range $name, $value := . }}
{{ $name }} = {{ toJson $value }}
{{- end }}
{{- end -}}

{{/* An object of the chart with `merge` of the values in it. Takes a dict with object (YAML) and merge. */}}
{{- define "comet.merged" -}}
{{- if .merge -}}
{{- toYaml (mergeOverwrite (fromYaml .object) (deepCopy .merge)) -}}
{{- else -}}
{{- .object -}}
{{- end -}}
{{- end -}}

{{/* What all pods have in common. Takes the root. */}}
{{- define "comet.podBasics" -}}
serviceAccountName: {{ include "comet.serviceAccount" . }}
automountServiceAccountToken: false
# Kubernetes would set COMET_PORT to the address of a service that is called comet.
enableServiceLinks: false
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: { type: RuntimeDefault }
{{- end -}}

{{- define "comet.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end -}}

{{/* Where pods of a component run. Takes a dict with root, component and values. */}}
{{- define "comet.scheduling" -}}
{{- $values := .values -}}
affinity:
  {{- if $values.affinity }}
  {{- toYaml $values.affinity | nindent 2 }}
  {{- else }}
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels:
              {{- include "comet.selector" . | nindent 14 }}
  {{- end }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: topology.kubernetes.io/zone
    whenUnsatisfiable: {{ default "ScheduleAnyway" $values.spread.zones }}
    labelSelector:
      matchLabels:
        {{- include "comet.selector" . | nindent 8 }}
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: {{ $values.spread.hosts }}
    labelSelector:
      matchLabels:
        {{- include "comet.selector" . | nindent 8 }}
{{- with $values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}

{{/* One replica at a time may be away, and only while the others are ready. Takes a dict with root and component. */}}
{{- define "comet.disruptionBudget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ printf "%s-%s" (include "comet.fullname" .root) .component }}
  labels:
    {{- include "comet.labels" . | nindent 4 }}
spec:
  maxUnavailable: 1
  unhealthyPodEvictionPolicy: IfHealthyBudget
  selector:
    matchLabels:
      {{- include "comet.selector" . | nindent 6 }}
{{- end -}}

{{/* The environment of a client of the brokers. Takes a dict with root and name, the client whose certificate it presents. */}}
{{- define "comet.clientEnv" -}}
{{- if include "comet.hasTls" .root -}}
- { name: COMET_CLIENT_CA, value: /etc/comet/tls/ca.pem }
{{- if not (include "comet.takesCredentials" .root) }}
- { name: COMET_CLIENT_CERT, value: /etc/comet/tls/{{ .name }}.pem }
- { name: COMET_CLIENT_KEY, value: /etc/comet/tls/{{ .name }}.key }
{{- end }}
{{- end }}
{{- with .root.Values.clientEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Whether clients present tokens or access keys, in place of certificates. */}}
{{- define "comet.takesCredentials" -}}
{{- if or .Values.brokers.settings.jwt_issuer .Values.brokers.settings.access_keys }}true{{ end -}}
{{- end -}}

{{/*
A volume with certificates under the names that `comet security` gives their files. Takes a dict with root and names.
All brokers have the same pod template, so each has the files of all; its number says which ones are its own.
*/}}
{{- define "comet.tlsVolume" -}}
{{- $root := .root -}}
- name: tls
  projected:
    defaultMode: 0440
    sources:
      {{- if eq $root.Values.tls.source "cert-manager" }}
      {{- range $index, $name := .names }}
      - secret:
          name: {{ printf "%s-%s" (include "comet.fullname" $root) $name }}
          items:
            - { key: tls.crt, path: {{ $name }}.pem }
            - { key: tls.key, path: {{ $name }}.key }
            {{- if eq $index 0 }}
            - { key: ca.crt, path: ca.pem }
            {{- end }}
      {{- end }}
      {{- else if .all }}
      - secret:
          name: {{ $root.Values.tls.secret }}
      {{- else }}
      - secret:
          name: {{ $root.Values.tls.secret }}
          items:
            - { key: ca.pem, path: ca.pem }
            {{- range .names }}
            - { key: {{ . }}.pem, path: {{ . }}.pem }
            - { key: {{ . }}.key, path: {{ . }}.key }
            {{- end }}
      {{- end }}
{{- end -}}
