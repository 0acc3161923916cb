{{- /* The chart's etcd as it runs, or nothing. Helm sees it only with access to the cluster. */}}
{{- define "elastrain.etcdRunning" -}}
{{- lookup "apps/v1" "StatefulSet" .Release.Namespace (include "elastrain.etcdName" .) | default dict | toJson -}}
{{- end }}

{{- /* "yes": etcd's data is on volumes. Without etcd.persistence.enabled: unchanged for a running etcd, yes for a new one. */}}
{{- define "elastrain.etcdPersistent" -}}
{{- $running := include "elastrain.etcdRunning" . | fromJson }}
{{- $kept := dig "spec" "volumeClaimTemplates" (list) $running | empty | not }}
{{- $asked := .Values.etcd.persistence.enabled }}
{{- if kindIs "invalid" $asked }}
{{- ternary "yes" "" (or (empty $running) $kept) -}}
{{- else }}
{{- if and $running (ne $kept $asked) }}
{{- fail (printf "etcd.persistence.enabled is %t, but the running etcd was installed with %t. Delete it first: kubectl -n %s delete statefulset %s. Training continues, and the new etcd gets its records again (\"Another form of etcd\" in docs/operations.md)" $asked $kept .Release.Namespace (include "elastrain.etcdName" .)) }}
{{- end }}
{{- ternary "yes" "" $asked -}}
{{- end }}
{{- end }}

{{- /* Members of the etcd that runs, or whose volumes an earlier installation has left; 0: there is neither. A member with
data keeps to the cluster that it knows: with empty members beside it, there would be two. */}}
{{- define "elastrain.etcdKept" -}}
{{- $running := include "elastrain.etcdRunning" . | fromJson }}
{{- if $running -}}
{{- dig "metadata" "annotations" "elastrain.dev/etcd-members" "1" $running -}}
{{- else -}}
{{- $left := list }}
{{- range dig "items" (list) (lookup "v1" "PersistentVolumeClaim" .Release.Namespace "" | default dict) }}
{{- if regexMatch (printf "^data-%s-[0-9]+$" (include "elastrain.etcdName" $)) .metadata.name }}
{{- $left = append $left .metadata.name }}
{{- end }}
{{- end }}
{{- len $left -}}
{{- end }}
{{- end }}

{{- /* Members of etcd. Without etcd.replicas: unchanged for an etcd that is kept; 3 for a new one, and 1 without volumes. */}}
{{- define "elastrain.etcdReplicas" -}}
{{- $persistent := include "elastrain.etcdPersistent" . }}
{{- $kept := include "elastrain.etcdKept" . | int }}
{{- $asked := .Values.etcd.replicas }}
{{- if kindIs "invalid" $asked }}
{{- if and $kept (or $persistent (include "elastrain.etcdRunning" . | fromJson)) }}{{ $kept }}{{ else }}{{ ternary 1 3 (empty $persistent) }}{{ end -}}
{{- else }}
{{- if and (gt (int $asked) 1) (not $persistent) }}
{{- fail (printf "etcd.replicas is %d, but etcd.persistence.enabled is false: a member that loses its data cannot join the others again. Use 1 member, or volumes" (int $asked)) }}
{{- end }}
{{- if and $kept $persistent (ne (int $asked) $kept) }}
{{- fail (printf "etcd.replicas is %d, but the etcd that runs, or whose volumes are left, has %d. Delete it and its claims first: kubectl -n %s delete statefulset,pvc -l app.kubernetes.io/component=etcd. Training continues, and the new etcd gets its records again (\"Another form of etcd\" in docs/operations.md)" (int $asked) $kept .Release.Namespace) }}
{{- end }}
{{- int $asked -}}
{{- end }}
{{- end }}

{{- /* Name of the headless Service by which several members of etcd find each other. */}}
{{- define "elastrain.etcdPeers" -}}
{{ include "elastrain.etcdName" . }}-peers
{{- end }}

{{- /* Names of the members, each with its address for the others, as a JSON list. One member has no others. */}}
{{- define "elastrain.etcdPeerHosts" -}}
{{- $root := . }}
{{- $hosts := list }}
{{- $count := include "elastrain.etcdReplicas" . | int }}
{{- if gt $count 1 }}
{{- range until $count }}
{{- $hosts = append $hosts (printf "%s-%d.%s.%s.svc" (include "elastrain.etcdName" $root) . (include "elastrain.etcdPeers" $root) $root.Release.Namespace) }}
{{- end }}
{{- end }}
{{- toJson $hosts -}}
{{- end }}

{{- /* The value of etcd's --initial-cluster. */}}
{{- define "elastrain.etcdMembers" -}}
{{- $scheme := ternary "http" "https" (eq (include "elastrain.etcdTLS" .) "off") }}
{{- $members := list }}
{{- range include "elastrain.etcdPeerHosts" . | fromJsonArray }}
{{- $members = append $members (printf "%s=%s://%s:2380" (splitList "." . | first) $scheme .) }}
{{- end }}
{{- join "," $members -}}
{{- end }}

{{- /* Prefers a different node, and a different zone, for each member of etcd. */}}
{{- define "elastrain.etcdSpread" -}}
podAntiAffinity:
  preferredDuringSchedulingIgnoredDuringExecution:
    {{- range $weight, $topology := dict "100" "kubernetes.io/hostname" "50" "topology.kubernetes.io/zone" }}
    - weight: {{ $weight }}
      podAffinityTerm:
        topologyKey: {{ $topology }}
        labelSelector:
          matchLabels:
            {{- include "elastrain.selector" (dict "root" $ "component" "etcd") | nindent 12 }}
    {{- end }}
{{- end }}

{{- /* The container of etcd, without its name. With TLS it serves clients inside its pod only. */}}
{{- define "elastrain.etcdContainer" -}}
{{- $name := include "elastrain.etcdName" . }}
{{- $tls := ne (include "elastrain.etcdTLS" .) "off" }}
{{- $scheme := ternary "https" "http" $tls }}
{{- $several := gt (include "elastrain.etcdReplicas" . | int) 1 }}
{{- $host := printf "%s.%s.svc" $name .Release.Namespace }}
image: {{ include "elastrain.image" (dict "image" .Values.etcd.image) }}
imagePullPolicy: {{ .Values.etcd.image.pullPolicy }}
command:
  - etcd
  - --data-dir=/var/lib/etcd/data
  - --listen-client-urls={{ $scheme }}://{{ ternary "127.0.0.1:2378" "0.0.0.0:2379" $tls }}
  - --advertise-client-urls={{ $scheme }}://{{ $host }}:2379
  {{- if $several }}
  {{- $peer := printf "%s://$(POD_NAME).%s.%s.svc:2380" $scheme (include "elastrain.etcdPeers" .) .Release.Namespace }}
  - --name=$(POD_NAME)
  - --listen-peer-urls={{ $scheme }}://0.0.0.0:2380
  - --initial-advertise-peer-urls={{ $peer }}
  - --initial-cluster={{ include "elastrain.etcdMembers" . }}
  - --initial-cluster-token={{ .Release.Namespace }}/{{ $name }}
  {{- if $tls }}
  - --peer-cert-file=/etc/etcd/tls/tls.crt
  - --peer-key-file=/etc/etcd/tls/tls.key
  - --peer-trusted-ca-file=/etc/etcd/tls/ca.crt
  - --peer-client-cert-auth
  {{- end }}
  {{- else }}
  - --name=etcd
  - --listen-peer-urls=http://127.0.0.1:2380
  - --initial-advertise-peer-urls=http://127.0.0.1:2380
  - --initial-cluster=etcd=http://127.0.0.1:2380
  {{- end }}
  - --listen-metrics-urls=http://0.0.0.0:2381
  - --auto-compaction-mode=periodic
  - --auto-compaction-retention=1m  # a job writes a revision a second; they count against the quota until then
  - --quota-backend-bytes={{ int64 .Values.etcd.quotaBytes }}
  {{- if $tls }}
  # etcd reads these files for every connection: a renewed certificate needs no restart.
  - --tls-min-version=TLS1.3
  - --cert-file=/etc/etcd/tls/tls.crt
  - --key-file=/etc/etcd/tls/tls.key
  # All passwords have 256 random bits, so a slow hash adds no protection. It would delay thousands of workers that
  # log in at once: a login takes 70 ms of etcd's CPU at the default cost of 10, 2 ms at 4.
  - --bcrypt-cost=4
  {{- end }}
{{- if or $tls $several }}
env:
  {{- if $several }}
  - name: POD_NAME
    valueFrom: {fieldRef: {fieldPath: metadata.name}}
  {{- end }}
  {{- if $tls }}
  # For `kubectl exec`: etcdctl --user=root ...
  - {name: ETCDCTL_ENDPOINTS, value: "https://{{ $host }}:2378"}
  - {name: ETCDCTL_CACERT, value: /etc/etcd/tls/ca.crt}
  {{- end }}
{{- end }}
ports:
  {{- if not $tls }}
  - name: client
    containerPort: 2379
  {{- end }}
  {{- if $several }}
  - name: peer
    containerPort: 2380
  {{- end }}
  - name: metrics
    containerPort: 2381
startupProbe:
  httpGet: {path: /readyz, port: metrics}
  periodSeconds: 1
  failureThreshold: 120
readinessProbe:
  httpGet: {path: /readyz, port: metrics}
  periodSeconds: 5
  timeoutSeconds: 3
livenessProbe:
  httpGet: {path: /livez, port: metrics}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
resources:
  {{- toYaml .Values.etcd.resources | nindent 2 }}
securityContext:
  {{- include "elastrain.containerSecurityContext" . | nindent 2 }}
volumeMounts:
  - name: data
    mountPath: /var/lib/etcd
  {{- if $tls }}
  - name: tls
    mountPath: /etc/etcd/tls
    readOnly: true
  {{- end }}
{{- end }}
