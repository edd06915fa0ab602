{{- define "millstream.name" -}}
{{- if contains "millstream" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-millstream" .Release.Name | trunc 40 | trimSuffix "-" }}{{ end -}}
{{- end }}

{{- define "millstream.selector" -}}
app.kubernetes.io/name: millstream
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "millstream.labels" -}}
{{ include "millstream.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "millstream.nodes" -}}
{{ include "millstream.name" . }}-nodes.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end }}

{{- define "millstream.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* 22 characters: 16 bytes in base64 without the padding. */}}
{{- define "millstream.clusterId" -}}
{{ .Values.clusterId | default (printf "%s/%s" .Release.Namespace .Release.Name | sha256sum | trunc 16 | b64enc | trunc 22) }}
{{- end }}

{{- /* The variable of a setting, by the rules of the image apache/kafka. */}}
{{- define "millstream.variable" -}}
KAFKA_{{ . | replace "_" "@@" | replace "-" "@@@" | replace "." "_" | replace "@" "_" | upper }}
{{- end }}

{{- /* The brokers of this release before the upgrade; 0 if that is not known, as at the installation. */}}
{{- define "millstream.previousReplicas" -}}
{{- if .Values.scaling.previousReplicas }}{{ .Values.scaling.previousReplicas }}{{ else -}}
{{- $found := lookup "apps/v1" "StatefulSet" .Release.Namespace (include "millstream.name" .) -}}
{{- if $found }}{{ $found.spec.replicas }}{{ else }}0{{ end }}
{{- end -}}
{{- end }}

{{- define "millstream.podSecurity" -}}
runAsNonRoot: true
runAsUser: 1000
runAsGroup: 1000
fsGroup: 1000
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "millstream.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "millstream.secrets" -}}
- name: secrets
  secret:
    secretName: {{ .Values.security.secretName }}
    defaultMode: 0440
{{- end }}
