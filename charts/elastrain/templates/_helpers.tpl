{{- /* Name of the operator's objects, at most 50 characters so that suffixes fit. */}}
{{- define "elastrain.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride }}
{{- else if contains .Chart.Name .Release.Name }}
{{- .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "elastrain.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/name: elastrain
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- /* Labels that select the pods of a component. Call with (dict "root" $ "component" "operator"). */}}
{{- define "elastrain.selector" -}}
app.kubernetes.io/name: elastrain
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "elastrain.image" -}}
{{ .image.repository }}:{{ .image.tag | default .default }}
{{- end }}

{{- define "elastrain.etcdName" -}}
{{ include "elastrain.fullname" . }}-etcd
{{- end }}

{{- /* host:port[,host:port], as the operator and every worker reach etcd. */}}
{{- define "elastrain.etcdEndpoints" -}}
{{- if .Values.etcd.endpoints }}
{{- join "," .Values.etcd.endpoints }}
{{- else }}
{{- include "elastrain.etcdName" . }}.{{ .Release.Namespace }}.svc:2379
{{- end }}
{{- end }}

{{- /* Satisfies the `restricted` Pod Security Standard, for pods and for containers. */}}
{{- define "elastrain.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "elastrain.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- /* Where the pods of a component run. Call with its values. */}}
{{- define "elastrain.placement" -}}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}

{{- /* What the operator may do with jobs and pods of a namespace it serves. */}}
{{- define "elastrain.operatorRules" -}}
# Held by a test against what the operator says it uses (PERMISSIONS in its kube.py). `delete` is for
# ttlSecondsAfterFinished. The spec is never written: no `update`, no `patch`.
- apiGroups: [elastrain.dev]
  resources: [elastictrainingjobs]
  verbs: [get, list, watch, delete]
- apiGroups: [elastrain.dev]
  resources: [elastictrainingjobs/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- end }}
