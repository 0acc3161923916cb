{{- /* Name of the operator's objects, at most 47 characters: `-etcd` follows, and Kubernetes appends 11 characters in a
       label of its pods, which may have 63. A longer one ends in a digest, so that two releases never share it. */}}
{{- define "elastrain.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride }}
{{- else if contains .Chart.Name .Release.Name }}
{{- include "elastrain.short" .Release.Name }}
{{- else }}
{{- include "elastrain.short" (printf "%s-%s" .Release.Name .Chart.Name) }}
{{- end }}
{{- end }}

{{- define "elastrain.short" -}}
{{- if gt (len .) 47 }}{{ trunc 38 . | trimSuffix "-" }}-{{ sha256sum . | trunc 8 }}{{ else }}{{ . }}{{ end }}
{{- end }}

{{- /* Prefix of the names of all objects outside the release's own namespace, so that two releases of one name in two
       namespaces never share one. Neither part contains a dot: each pair has one name. At most 111 characters. */}}
{{- define "elastrain.clusterName" -}}
{{ include "elastrain.fullname" . }}.{{ .Release.Namespace }}
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

{{- /* repository:tag, or repository[:tag]@digest: then the digest decides, and the default tag would only mislead. */}}
{{- define "elastrain.image" -}}
{{- if not .image.repository -}}
{{- fail "operator.image.repository is empty, as no image is published. In a checkout: docker build --target operator -t REGISTRY/elastrain/operator:VERSION . && docker push REGISTRY/elastrain/operator:VERSION; then --set operator.image.repository=REGISTRY/elastrain/operator" -}}
{{- end -}}
{{- $tag := .image.tag | default (ternary "" .default (not (empty .image.digest))) -}}
{{ .image.repository }}{{ with $tag }}:{{ . }}{{ end }}{{ with .image.digest }}@{{ . }}{{ end }}
{{- end }}

{{- define "elastrain.etcdName" -}}
{{ include "elastrain.fullname" . }}-etcd
{{- end }}

{{- /* host:port[,host:port]: etcd's endpoints for the operator and all workers. */}}
{{- define "elastrain.etcdEndpoints" -}}
{{- if .Values.etcd.endpoints }}
{{- join "," .Values.etcd.endpoints }}
{{- else }}
{{- include "elastrain.etcdName" . }}.{{ .Release.Namespace }}.svc:2379
{{- end }}
{{- end }}

{{- /* Source of the certificates of the chart's etcd: off, generated, cert-manager or existing. Without etcd.tls.mode:
       unchanged for a running etcd, `generated` for a new one. */}}
{{- define "elastrain.etcdTLS" -}}
{{- if .Values.etcd.endpoints -}}
off
{{- else if .Values.etcd.tls.mode -}}
{{ .Values.etcd.tls.mode }}
{{- else -}}
{{- $running := lookup "apps/v1" "StatefulSet" .Release.Namespace (include "elastrain.etcdName" .) | default dict }}
{{- $flags := list }}
{{- range dig "spec" "template" "spec" "containers" (list) $running }}
{{- $flags = concat $flags (.command | default list) }}
{{- end }}
{{- if not (lookup "v1" "Namespace" "" "kube-system") }}
{{- fail "etcd.tls.mode: empty: Helm has no access to the cluster, where it would find the keys of the last time: name a mode. Argo CD, Flux and helm template need cert-manager, or existing with etcd.tls.rootSecretName" }}
{{- end }}
{{- ternary "off" "generated" (has "--listen-client-urls=http://0.0.0.0:2379" $flags) }}
{{- end }}
{{- end }}

{{- /* Name of the Secret with ca.crt, tls.crt and tls.key of the chart's etcd. */}}
{{- define "elastrain.etcdTLSSecret" -}}
{{- if eq (include "elastrain.etcdTLS" .) "existing" -}}
{{ required "etcd.tls.secretName must name a Secret with ca.crt, tls.crt and tls.key if etcd.tls.mode is existing" .Values.etcd.tls.secretName }}
{{- else -}}
{{ include "elastrain.etcdName" . }}-{{ ternary "server" "tls" (eq (include "elastrain.etcdTLS" .) "generated") }}
{{- end }}
{{- end }}

{{- /* Name of the Secret with the password of root and the key for the passwords of jobs. */}}
{{- define "elastrain.etcdRootSecret" -}}
{{ .Values.etcd.tls.rootSecretName | default (printf "%s-root" (include "elastrain.etcdName" .)) }}
{{- end }}

{{- /* Not empty if each job has its own credentials. */}}
{{- define "elastrain.perJob" -}}
{{- if or (ne (include "elastrain.etcdTLS" .) "off") (and .Values.etcd.endpoints .Values.etcd.credentials.perJob) }}yes{{ end }}
{{- end }}

{{- /* DNS names in the certificate of the chart's etcd, as a JSON list. */}}
{{- define "elastrain.etcdHosts" -}}
{{- $name := include "elastrain.etcdName" . }}
{{- $service := printf "%s.%s.svc" $name .Release.Namespace }}
{{- $names := list $service (printf "%s.%s" $name .Release.Namespace) $name (printf "%s.cluster.local" $service) "localhost" }}
{{- include "elastrain.etcdPeerHosts" . | fromJsonArray | concat $names | toJson }}
{{- end }}

{{- /* Settings for the operator's connection to etcd, and for those of workers. */}}
{{- define "elastrain.operatorEtcdEnv" -}}
{{- if ne (include "elastrain.etcdTLS" .) "off" -}}
- name: ELASTRAIN_ETCD_CA
  value: /etc/elastrain/etcd-ca/ca.crt
- name: ELASTRAIN_ETCD_USERNAME
  value: root
- name: ELASTRAIN_ETCD_PASSWORD_FILE
  value: /etc/elastrain/etcd/password
- name: ELASTRAIN_JOB_KEY_FILE
  value: /etc/elastrain/etcd/job-key
{{- else if .Values.etcd.credentials.secretName -}}
{{- with .Values.etcd.credentials -}}
{{- if .perJob -}}
- name: ELASTRAIN_JOB_KEY_FILE
  value: /etc/elastrain/etcd/job-key
{{- else -}}
- name: ELASTRAIN_WORKER_ETCD_SECRET
  value: {{ .secretName | quote }}
{{- end }}
{{- if .ca }}
- name: ELASTRAIN_ETCD_CA
  value: /etc/elastrain/etcd/ca.crt
{{- end }}
{{- if .clientCertificate }}
- name: ELASTRAIN_ETCD_CERT
  value: /etc/elastrain/etcd/tls.crt
- name: ELASTRAIN_ETCD_KEY
  value: /etc/elastrain/etcd/tls.key
{{- end }}
{{- if .user }}
- name: ELASTRAIN_ETCD_USERNAME
  valueFrom:
    secretKeyRef: {name: {{ .secretName }}, key: username}
- name: ELASTRAIN_ETCD_PASSWORD_FILE
  value: /etc/elastrain/etcd/password
{{- end }}
{{- end }}
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

{{- /* Placement of a component's pods. Call with its values. */}}
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

{{- /* Prefers different nodes for the operator's replicas. */}}
{{- define "elastrain.spread" -}}
podAntiAffinity:
  preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels:
            {{- include "elastrain.selector" (dict "root" . "component" "operator") | nindent 12 }}
{{- end }}

{{- /* The operator's rights in a served namespace. */}}
{{- define "elastrain.operatorRules" -}}
# A test compares these rules with the operator's PERMISSIONS. `delete` is for ttlSecondsAfterFinished. The operator never
# writes a spec: no `update`, and `patch` only for the label of a job, to which the admission policy reduces it.
- apiGroups: [elastrain.dev]
  resources: [elastictrainingjobs]
  verbs: [get, list, watch, delete]
- apiGroups: [elastrain.dev]
  resources: [elastictrainingjobs/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch]
# A budget for each job keeps one worker that holds the training state.
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [list, create, patch, delete]
# The set of each job's workers, by which budgets of users count.
- apiGroups: [elastrain.dev]
  resources: [workersets]
  verbs: [list, create, patch]
{{- with include "elastrain.gang" . | fromJsonArray }}
# The gang of each job, for its scheduler.
- apiGroups: [{{ first . }}]
  resources: [{{ last . }}]
  verbs: [create, patch, delete]
{{- end }}
{{- if .Values.kueue.enabled }}
# The Workloads of each queued job.
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads/status]
  verbs: [update]
- apiGroups: [kueue.x-k8s.io]
  resources: [localqueues]
  verbs: [list, watch]
{{- end }}
{{- if include "elastrain.perJob" . }}
# Each job's etcd credentials. Write-only: neither `get` nor `patch`, whose response contains the object.
- apiGroups: [""]
  resources: [secrets]
  verbs: [create, update]
{{- end }}
{{- end }}

{{- /* API group and resource of gangs, as [group, resource], for gang.scheduler; empty: none. */}}
{{- define "elastrain.gang" -}}
{{- get (dict "coscheduling" (list "scheduling.x-k8s.io" "podgroups") "volcano" (list "scheduling.volcano.sh" "podgroups") "native" (list "scheduling.k8s.io" "podgroups") "none" list) .Values.gang.scheduler | toJson -}}
{{- end }}

{{- /* A selector of the served namespaces. */}}
{{- define "elastrain.servedNamespaces" -}}
{{- if .Values.watchNamespaces -}}
matchExpressions:
  - key: kubernetes.io/metadata.name
    operator: In
    values: {{ toJson .Values.watchNamespaces }}
{{- else -}}
{}
{{- end }}
{{- end }}

{{- /* Whether the operator shares the cluster: only if it serves all namespaces. */}}
{{- define "elastrain.capacity" -}}
{{- and .Values.capacity.enabled (not .Values.watchNamespaces) -}}
{{- end }}

{{- /* Additional rights for cluster sharing (the operator's CAPACITY_PERMISSIONS). */}}
{{- define "elastrain.capacityRules" -}}
- apiGroups: [""]
  resources: [nodes, resourcequotas]
  verbs: [list, watch]
- apiGroups: [scheduling.k8s.io]
  resources: [priorityclasses]
  verbs: [list, watch]
{{- if .Values.capacity.deviceClaims }}
- apiGroups: [resource.k8s.io]
  resources: [resourceslices, deviceclasses, resourceclaimtemplates, resourceclaims]
  verbs: [list, watch]
{{- end }}
{{- end }}

{{- /* The dashboard's rights in each namespace that it shows (its PERMISSIONS). It has no write access. */}}
{{- define "elastrain.dashboardRules" -}}
- apiGroups: [elastrain.dev]
  resources: [elastictrainingjobs]
  verbs: [list, watch]
- apiGroups: [""]
  resources: [pods, events]
  verbs: [list, watch]
{{- end }}
