{{/* A Certificate. Takes a dict with root, component, name, issuer (a map), usages, and uris, hosts, or both. */}}
{{- define "comet.certificate" -}}
apiVersion: cert-manager.io/v1
kind: Certificate
metadata:
  name: {{ .name }}
  labels:
    {{- include "comet.labels" . | nindent 4 }}
spec:
  secretName: {{ .name }}
  duration: {{ .root.Values.tls.certManager.duration }}
  renewBefore: {{ .root.Values.tls.certManager.renewBefore }}
  privateKey: { algorithm: ECDSA, size: 256, encoding: PKCS8, rotationPolicy: Always }
  usages: {{ toJson .usages }}
  {{- with .uris }}
  uris: {{ toJson . }}
  {{- end }}
  {{- with .hosts }}
  dnsNames: {{ toJson . }}
  {{- end }}
  {{- with .addresses }}
  ipAddresses: {{ toJson . }}
  {{- end }}
  issuerRef: {{ toJson .issuer }}
{{- end -}}

{{/* An authority of the release's own: a certificate that signs itself, and the issuer that uses it. Takes a dict with root and name. */}}
{{- define "comet.authority" -}}
apiVersion: cert-manager.io/v1
kind: Issuer
metadata:
  name: {{ .name }}-root
  labels:
    {{- include "comet.labels" . | nindent 4 }}
spec:
  selfSigned: {}
---
apiVersion: cert-manager.io/v1
kind: Certificate
metadata:
  name: {{ .name }}
  labels:
    {{- include "comet.labels" . | nindent 4 }}
spec:
  secretName: {{ .name }}
  isCA: true
  commonName: {{ .name }}
  duration: 87600h
  renewBefore: 8760h
  # The same key when it is renewed, so that certificates that it has signed stay valid.
  privateKey: { algorithm: ECDSA, size: 256, encoding: PKCS8, rotationPolicy: Never }
  issuerRef: { name: {{ .name }}-root, kind: Issuer, group: cert-manager.io }
---
apiVersion: cert-manager.io/v1
kind: Issuer
metadata:
  name: {{ .name }}
  labels:
    {{- include "comet.labels" . | nindent 4 }}
spec:
  ca: { secretName: {{ .name }} }
{{- end -}}

{{- define "comet.issuer" -}}
{{- if .Values.tls.certManager.issuerRef -}}
{{- toJson (merge (deepCopy .Values.tls.certManager.issuerRef) (dict "kind" "Issuer" "group" "cert-manager.io")) -}}
{{- else -}}
{{- toJson (dict "name" (printf "%s-ca" (include "comet.fullname" .)) "kind" "Issuer" "group" "cert-manager.io") -}}
{{- end -}}
{{- end -}}
